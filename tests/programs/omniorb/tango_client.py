"""Calls to a Tango device at a TCP port of this host, and says "served" when all was right.

    tango_client.py device PORT     TangoTest: every command, every attribute
    tango_client.py events PORT     tango_device.py: events that it pushes
"""

import queue
import sys
import time

import numpy
import tango

# Scalars that are written and read back, by command (given = answered) and by attribute.
COMMANDS = {
    "DevBoolean": True,
    "DevDouble": 2.5,
    "DevFloat": -0.5,
    "DevLong": -7,
    "DevLong64": 2**40,
    "DevShort": -3,
    "DevString": "a word",
    "DevULong": 2**31 + 1,
    "DevULong64": 2**63,
    "DevUShort": 65535,
}
ARRAYS = {
    "DevVarCharArray": numpy.uint8,
    "DevVarDoubleArray": numpy.float64,
    "DevVarFloatArray": numpy.float32,
    "DevVarLong64Array": numpy.int64,
    "DevVarLongArray": numpy.int32,
    "DevVarShortArray": numpy.int16,
    "DevVarULong64Array": numpy.uint64,
    "DevVarULongArray": numpy.uint32,
    "DevVarUShortArray": numpy.uint16,
}
TYPES = {
    "boolean": bool, "double": numpy.float64, "float": numpy.float32, "long": numpy.int32,
    "short": numpy.int16, "uchar": numpy.uint8, "ushort": numpy.uint16
}


def commands(device):
    for name, value in COMMANDS.items():
        assert device.command_inout(name, value) == value, name
    for name, kind in ARRAYS.items():
        for size in (0, 1, 1000, 300_000):
            given = (numpy.arange(size) % 100).astype(kind)
            answer = device.command_inout(name, given)
            assert (numpy.asarray(answer if answer is not None else [],
                                  dtype=kind) == given).all(), (name, size)
    words = [f"word {i}" for i in range(2000)]
    assert list(device.command_inout("DevVarStringArray", words)) == words
    for name, numbers in (("DevVarLongStringArray", list(
            range(500))), ("DevVarDoubleStringArray", [i / 4 for i in range(500)])):
        answer = device.command_inout(name, (numbers, words))
        assert list(answer[0]) == numbers and list(answer[1]) == words, name
    assert "TangoTest" in device.info().dev_class


def attributes(device):
    for name in device.get_attribute_list():
        if name not in ("no_value", "throw_exception") and device.get_attribute_config(
                name).writable != tango.AttrWriteType.WRITE:
            assert not device.read_attribute(name).has_failed, name
    for name, kind in TYPES.items():
        value = kind(1)
        device.write_attribute(f"{name}_scalar", value)
        assert device.read_attribute(f"{name}_scalar").w_value == value, name
        for size in (1, 100, 4096):
            row = (numpy.arange(size) % 2).astype(kind)
            device.write_attribute(f"{name}_spectrum", row)
            assert (device.read_attribute(f"{name}_spectrum").w_value == row).all(), (name, size)
        # TangoTest ends when one writes its long_image
        for side in (1, 251) if name != "long" else ():
            image = (numpy.arange(side * side) % 2).astype(kind).reshape(side, side)
            device.write_attribute(f"{name}_image", image)
            assert (device.read_attribute(f"{name}_image").w_value == image).all(), (name, side)
    for name, value in (("string_scalar", "x" * 100_000), ("long64_scalar", -2**40),
                        ("ulong64_scalar", 2**63), ("ulong_scalar", 2**31)):
        device.write_attribute(name, value)
        assert device.read_attribute(name).w_value == value, name
    words = tuple(f"word {i}" for i in range(256))
    device.write_attribute("string_spectrum", words)
    assert tuple(device.read_attribute("string_spectrum").w_value) == words
    try:
        device.read_attribute("throw_exception")
        raise SystemExit("no exception")
    except tango.DevFailed:
        pass
    several = device.read_attributes(["long_scalar", "double_spectrum", "string_image"])
    assert not any(a.has_failed for a in several)


def events(device):
    arrived = queue.Queue()
    subscription = device.subscribe_event("level", tango.EventType.CHANGE_EVENT, arrived.put)
    deadline = time.monotonic() + 120
    # The first one is made by the subscription. Those pushed before the socket of events is
    # connected may be lost.
    seen, value = [], 0.0
    while len(seen) < 20:
        assert time.monotonic() < deadline, seen
        value += 1.0
        device.push(value)
        try:
            while True:
                event = arrived.get(timeout=0.2)
                assert not event.err, event.errors
                seen.append(event.attr_value.value)
                if seen[-1] == value:
                    break
        except queue.Empty:
            pass
    assert seen == sorted(seen) and seen[-1] == value, (seen, value)
    device.unsubscribe_event(subscription)


def main():
    what, port = sys.argv[1:]
    device = tango.DeviceProxy(f"tango://127.0.0.1:{port}/a/b/c#dbase=no")
    device.set_timeout_millis(60_000)
    assert device.ping() >= 0
    if what == "events":
        events(device)
    else:
        commands(device)
        attributes(device)
        for _ in range(2000):
            device.ping()
    print("served", device.state())


if __name__ == "__main__":
    main()
