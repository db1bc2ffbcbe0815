"""nvml: what NVML reports of a device, for bench/shares.py, by the protocol of load.c.

    nvml.py INDEX

    clock FROM TO          the SM clock every 50 ms: its mean in MHz, or null
    use FROM TO            what nvmlDeviceGetProcessUtilization says of each process between FROM and TO
    energy FROM TO         joules the device has drawn since its driver was loaded; the times are ignored
"""
import ctypes
import json
import os
import sys
import time

SM = 1  # NVML_CLOCK_SM
SHORT = 7  # NVML_ERROR_INSUFFICIENT_SIZE
NONE = 6  # NVML_ERROR_NOT_FOUND: no sample since then


class Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t"""

    _fields_ = [("pid", ctypes.c_uint), ("time", ctypes.c_ulonglong), ("sm", ctypes.c_uint), ("memory", ctypes.c_uint),
                ("encoder", ctypes.c_uint), ("decoder", ctypes.c_uint)]


class Device:
    def __init__(self, index):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        self.call("nvmlInit_v2")
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self.handle))

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise OSError(status, "%s: NVML's error %d" % (name, status))

    def clock(self, start, end):
        samples, mhz = [], ctypes.c_uint()
        sleep_until(start)
        while time.monotonic_ns() < end:
            try:
                self.call("nvmlDeviceGetClockInfo", self.handle, SM, ctypes.byref(mhz))
            except (OSError, AttributeError):
                break
            samples.append(mhz.value)
            time.sleep(0.05)
        return {"mhz": sum(samples) / len(samples) if samples else None, "samples": len(samples)}

    def energy(self, *_):
        joules = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", self.handle, ctypes.byref(joules))
        return {"joules": joules.value / 1000}

    def samples(self, since):
        """Samples since a time of the driver's clock, in µs of CLOCK_REALTIME."""
        count = ctypes.c_uint(0)
        arguments = (self.handle, None, ctypes.byref(count), ctypes.c_ulonglong(since))
        status = self.library.nvmlDeviceGetProcessUtilization(*arguments)
        if status == NONE or (status == 0 and count.value == 0):
            return []
        if status not in (0, SHORT):
            raise OSError(status, "nvmlDeviceGetProcessUtilization: NVML's error %d" % status)
        buffer = (Sample * max(count.value, 1))()
        status = self.library.nvmlDeviceGetProcessUtilization(self.handle, buffer, ctypes.byref(count),
                                                              ctypes.c_ulonglong(since))
        if status == NONE:
            return []
        if status != 0:
            raise OSError(status, "nvmlDeviceGetProcessUtilization: NVML's error %d" % status)
        return [s for s in buffer[:count.value] if s.time > since]

    def use(self, start, end):
        """Samples of each process between the two moments, as (time in µs since start, percent of the units' time)."""
        shift = time.time_ns() - time.monotonic_ns()
        first = since = (start + shift) // 1000
        sleep_until(start)
        of = {}
        while time.monotonic_ns() < end:
            time.sleep(0.1)
            for s in self.samples(since):
                # Each process has a latest sample of its own; what was seen already comes again.
                seen = of.setdefault(s.pid, [])
                if not seen or s.time > seen[-1][2]:
                    seen.append((s.time - first, s.sm, s.time))
        return {"use": {str(pid): [v[:2] for v in seen] for pid, seen in of.items()}}


def sleep_until(moment):
    time.sleep(max(0, moment - time.monotonic_ns()) / 1e9)


def main():
    try:
        device, failure = Device(int(sys.argv[1])), None
    except (OSError, AttributeError) as e:
        device, failure = None, str(e)
    print(json.dumps({"ready": True, "pid": os.getpid(), "nvml": failure or "works"}), flush=True)
    for line in sys.stdin:
        what, start, end = line.split()
        try:
            answer = {"clock": device.clock, "use": device.use, "energy": device.energy}[what](int(start), int(end)) if device else {"error": failure}
        except (OSError, AttributeError, KeyError) as e:
            answer = {"error": "%s: %s" % (what, e)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
