"""How a cache moves: topology -> mapping -> plan -> descriptors."""

from blockstride.transfer.copy_plan import CopyPlan, Indices
from blockstride.transfer.cost_model import CostModel, calibrate
from blockstride.transfer.engine_info import EngineTransferInfo, RankCoordinates, even_stages
from blockstride.transfer.executor import execute
from blockstride.transfer.mapping import TPMapping, compute_tp_mapping
from blockstride.transfer.peer_plan import PeerPlan, ReadSpec, Strategy, StrategyChoice
from blockstride.transfer.plan import EngineTransferPlan, generate_engine_transfer_plan
from blockstride.transfer.request import BlockIds, TransferRequest
from blockstride.transfer.topology import TransferTopology, expected_readers

__all__ = [
    "BlockIds",
    "CopyPlan",
    "CostModel",
    "EngineTransferInfo",
    "EngineTransferPlan",
    "Indices",
    "PeerPlan",
    "RankCoordinates",
    "ReadSpec",
    "Strategy",
    "StrategyChoice",
    "TPMapping",
    "TransferRequest",
    "TransferTopology",
    "calibrate",
    "compute_tp_mapping",
    "even_stages",
    "execute",
    "expected_readers",
    "generate_engine_transfer_plan",
]
