"""A Tango device that pushes events, for tango_client.py: `tango_device.py NAME -nodb -dlist a/b/c
-ORBendPoint ...`."""

from tango.server import Device, attribute, command, run


class Pusher(Device):
    def init_device(self):
        super().init_device()
        self.level_now = 0.0
        self.set_change_event("level", True, False)

    @attribute(dtype=float)
    def level(self):
        return self.level_now

    @command(dtype_in=float)
    def push(self, value):
        self.level_now = value
        self.push_change_event("level", value)


if __name__ == "__main__":
    run((Pusher,))
