"""What must be in the code that was compiled. Each check takes the launch and its PTX or, of AMD,
its assembler, and says what is wrong or returns None."""

import re

# What a check looks for, and the sign of it in the table.
_SIGNS = {
    "m": r"mma\.sync|wgmma\.mma|tcgen05\.mma|v_mfma",
    "w": r"ld\.global\S*\.(v4\.b32|v2\.b64|v8\.b32)|global_load_dwordx4|buffer_load_dwordx4",
    "b": r"bar\.sync|barrier\.sync|s_barrier",
}


def _is_nvidia(code):
    return ".target sm_" in code


def signs(code):
    """The letters of those that are there."""
    return "".join(sign for sign, pattern in _SIGNS.items() if re.search(pattern, code))


def matrix_products(launch, code):
    if launch.label.startswith("float32"):  # is multiplied in full precision
        return None
    if "m" in signs(code):
        return None
    return "no matrix instruction"


def loads_of_128_bits(launch, code):
    if "w" in signs(code):
        return None
    return "no load of 128 bits"


def barrier_before_stores(launch, code):
    """No store to global memory after a load of it without a barrier between them."""
    names = r"(ld\.global)|(bar\.sync|barrier\.sync)|(st\.global)"
    if not _is_nvidia(code):
        names = r"((?:global|buffer|flat)_load)|(s_barrier)|((?:global|buffer|flat)_store)"
    order = "".join("LBS"[match.lastindex - 1] for match in re.finditer(names, code))
    if not re.search("LB+S", order):
        return f"no load, barrier and store in this order, but {order}"
    return f"a store right after a load: {order}" if "LS" in order else None
