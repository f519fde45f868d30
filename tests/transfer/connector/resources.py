"""What a connector has in use, for tests that look for leaks, and when blocks are free."""

from time import monotonic, sleep

from blockstride.transfer.connector import Connector, ReadHandle


def resources_of(connector: Connector) -> dict[str, int]:
    """Counts, taken on the connector's own thread."""

    async def count() -> dict[str, int]:
        agent = connector._local.agent
        producers = connector._producers.values()
        sessions = [found for producer in producers for found in producer.sessions.values()]
        # the first registration is the agent's own
        sizes = [sum(found.memory.sizes.values()) for found in agent.registrations[1:]]
        return {
            "registered_bytes": sum(sizes),
            "peers": len(agent.peers),
            "postings": agent.unfinished(),
            "sessions": len(connector._server),
            "links": len(sessions),
            "granted": sum(len(session.epochs) for session in sessions),
            "reads": len(connector._reads),
            "leases": len(connector._leases),
            "writing": sum(len(lease.writing) for lease in connector._leases._leases.values()),
        }

    return connector._running().run(count())


def wait_settled(handle: ReadHandle, seconds: float) -> bool:
    """Waits until nothing writes to a request's blocks; returns whether that is so."""
    end = monotonic() + seconds
    while not handle.settled and monotonic() < end:
        sleep(0.005)
    return handle.settled
