"""libfabric, asked for its providers, names clan, and loads it from where FI_PROVIDER_PATH says."""

import ctypes
import os


def main():
    fabric = ctypes.CDLL("libfabric.so.1")
    fabric.fi_version.restype = ctypes.c_uint32
    found = ctypes.c_void_p()
    # Without hints: everything there is.
    code = fabric.fi_getinfo(fabric.fi_version(), None, None, ctypes.c_uint64(0), None,
                             ctypes.byref(found))
    assert code == 0, code
    fabric.fi_freeinfo(found)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        loaded = {line.split()[-1] for line in maps if "libclan-fi.so" in line}
    assert loaded == {os.path.realpath(os.environ["FI_PROVIDER_PATH"]) + "/libclan-fi.so"}, loaded
    print(*loaded)


if __name__ == "__main__":
    main()
