"""fake_loads: stands in for torch_loads.py where there is no PyTorch. It sleeps; its figures mean nothing."""
import time

from session import Session


class Load:
    depth = 0

    def step(self):
        time.sleep(0.005)

    def mark(self):
        return None

    def about(self):
        return {"flop": 10 ** 9, "device_ns": 1000000}

    def close(self):
        pass


if __name__ == "__main__":
    Session(lambda name: Load()).serve()
