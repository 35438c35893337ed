"""A choice as the settings that engines, NCCL, UCX and Kubernetes read: text to paste. Pure."""

import json

from msgspec import Struct

from .choice import Choice, Usable


class Setting(Struct, frozen=True):
    """One thing to paste: where it goes, the text, and a remark where the text alone would mislead."""

    reader: str
    text: str
    note: str | None = None


def settings(choice: Choice) -> tuple[Setting, ...]:
    """What to set for the HCAs of `choice`; nothing where there are none."""
    used = [item for item in choice.usable if item.hca in choice.hcas]
    if not used:
        return ()
    ports = ",".join(f"{item.hca}:{item.port}" for item in used)
    return (
        *_sglang(choice),
        Setting("vLLM Mooncake", json.dumps({"device_name": ",".join(choice.hcas)}), "in kv_connector_extra_config"),
        *_gid_index(used),
        Setting(
            "UCX (NIXL)", f"UCX_NET_DEVICES={ports}", "does not force RDMA: within a host bytes may go by shared memory"
        ),
        Setting("NCCL", f"NCCL_IB_HCA=={ports}", "exact names, hence the second '='; Mooncake and NIXL do not read it"),
        _kubernetes(used),
    )


def device_map(choice: Choice) -> dict[str, str]:
    """GPU index → comma-separated HCAs, as SGLang's JSON form of `--disaggregation-ib-device` has it."""
    return {
        str(item.gpu): ",".join(pick.hca for pick in item.picks)
        for item in choice.assignments
        if item.gpu is not None and item.picks
    }


def _sglang(choice: Choice) -> tuple[Setting, ...]:
    plain = Setting(
        "SGLang", f"--disaggregation-ib-device {','.join(choice.hcas)}", "names without ':1', which SGLang refuses"
    )
    by_gpu = device_map(choice)
    if len(set(by_gpu.values())) < 2:
        return (plain,)
    text = f"--disaggregation-ib-device '{json.dumps(by_gpu, separators=(',', ':'))}'"
    return (plain, Setting("SGLang by GPU", text, "needs a release whose argument check reads the JSON form"))


def common_gid_index(used: list[Usable]) -> int | None:
    """The one GID index that is the best on every RoCE port; None where they differ or there is none to set."""
    indices = {item.gid.gid.index for item in used if item.link_layer == "Ethernet" and item.gid.gid is not None}
    return indices.pop() if len(indices) == 1 else None


def _gid_index(used: list[Usable]) -> tuple[Setting, ...]:
    ethernet = [item for item in used if item.link_layer == "Ethernet" and item.gid.gid is not None]
    if not ethernet:
        return ()
    index = common_gid_index(used)
    if index is None:
        each = " ".join(f"{item.hca}:{item.gid.gid.index}" for item in ethernet if item.gid.gid)
        note = f"the index differs by HCA ({each}): one value for the process would be wrong on some"
        return (Setting("Mooncake", "# leave MC_GID_INDEX unset", note),)
    return (
        Setting("Mooncake", f"MC_GID_INDEX={index}", "read once a process"),
        Setting("UCX, NCCL", f"UCX_IB_GID_INDEX={index} NCCL_IB_GID_INDEX={index}"),
    )


def _kubernetes(used: list[Usable]) -> Setting:
    name = "ib" if all(item.link_layer == "InfiniBand" for item in used) else "roce"
    names = [item.gid.gid.netdev for item in used if item.gid.gid is not None and item.gid.gid.netdev]
    config = {"resourceName": name, "rdmaHcaMax": 63, "selectors": {"ifNames": names}}
    note = f"with this entry in the configList of k8s-rdma-shared-dev-plugin: {json.dumps(config)}" if names else None
    return Setting("Kubernetes", f"resources: {{limits: {{rdma/{name}: 1}}}}", note)
