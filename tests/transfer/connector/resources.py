"""What a connector has in use, for tests that look for leaks."""

from blockstride.transfer.connector import Connector


def resources_of(connector: Connector) -> dict[str, int]:
    """Counts, taken on the connector's own thread."""

    async def count() -> dict[str, int]:
        agent = connector._local.agent
        # the first registration is the agent's own
        sizes = [sum(found.memory.sizes.values()) for found in agent.registrations[1:]]
        return {
            "registered_bytes": sum(sizes),
            "peers": len(agent.peers),
            "postings": agent.unfinished(),
            "sessions": len(connector._server),
            "links": len(connector._links),
            "granted": connector._links.num_granted,
            "reads": len(connector._reads),
            "leases": len(connector._leases),
        }

    return connector._call(count())
