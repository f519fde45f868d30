"""How a cache moves: engines -> mapping -> plan -> descriptors."""

from blockstride.transfer.copy_plan import CopyPlan, Indices
from blockstride.transfer.cost_model import CostModel, calibrate
from blockstride.transfer.engine_info import EngineTransferInfo, RankCoordinates, even_stages
from blockstride.transfer.mapping import TPMapping, compute_tp_mapping, expected_readers
from blockstride.transfer.peer_plan import PeerPlan, ReadSpec, Strategy, StrategyChoice
from blockstride.transfer.plan import EngineTransferPlan, plan_transfer
from blockstride.transfer.request import BlockIds, TransferRequest

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
    "calibrate",
    "compute_tp_mapping",
    "even_stages",
    "expected_readers",
    "plan_transfer",
]
