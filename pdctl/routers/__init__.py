"""The routers that can stand before a fleet."""

from pdctl.routers.kinds import KEY_FLAGS, READY_PATH, ROUTERS, Backend, RouterKind, router_argv

__all__ = ["KEY_FLAGS", "READY_PATH", "ROUTERS", "Backend", "RouterKind", "router_argv"]
