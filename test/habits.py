"""habits.py FOLDER [network]: has what programs have, and says whether it still is as it was.

When all is there it prints "ready". For each line of its input it looks at each habit, prints a line with the name of each that
is not as it was and why, and then "checked N". It ends with its input. FOLDER is an empty one for files; with "network" it has
sockets of the network, too.

A habit is a generator: up to its first yield it comes about, and from one yield to the next it is looked at, once more each time.
"""
import ctypes
import faulthandler
import fcntl
import mmap
import multiprocessing
import os
import pty
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

import habits_named

PATIENCE = 20  # seconds for what must come
LONG = 1000000  # seconds until what must not come

folder = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
habits = []


def habit(f):
    habits.append(f)
    return f


def network(f):
    return habit(f) if "network" in sys.argv[2:] else f


def same(got, want):
    if got != want:
        raise ValueError(f"{got!r:.200}, want {want!r:.200}")


def until(what):
    """Waits until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError("it does not come about")
        time.sleep(0.005)


def path(name):
    return os.path.join(folder, name)


def written(name, data=b"0123456789"):
    with open(path(name), "wb") as f:
        f.write(data)
    return path(name)


def contents(name):
    with open(path(name), "rb") as f:
        return f.read()


def come(fd, count):
    """Reads what must come."""
    ready, _, _ = select.select([fd], [], [], PATIENCE)
    if not ready:
        raise TimeoutError("nothing comes")
    return os.read(fd, count)


def elsewhere(look):
    """Says whether another process finds something to be so."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if look() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- of the process. What is about signals comes before there are threads, which would have their own.


@habit
def pending_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)
    while True:
        yield
        same(signal.SIGUSR2 in signal.sigpending(), True)


@habit
def blocked_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 5])
    while True:
        yield
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        same({int(s) for s in blocked}, {signal.SIGUSR2, signal.SIGRTMIN + 5})


@habit
def signal_handlers():
    got = []
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    signal.signal(signal.SIGWINCH, signal.SIG_IGN)
    while True:
        yield
        got.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: got == [signal.SIGUSR1])
        with open("/proc/self/status") as status:
            ignored = next(int(line.split()[1], 16) for line in status if line.startswith("SigIgn:"))
        same(ignored >> signal.SIGWINCH - 1 & 1, 1)


@habit
def interval_timer():
    ticks = []
    signal.signal(signal.SIGALRM, lambda number, frame: ticks.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONG, 7)
    while True:
        yield
        ticks.clear()
        until(lambda: len(ticks) > 1)
        left, interval = signal.getitimer(signal.ITIMER_VIRTUAL)
        same((abs(LONG - left) < PATIENCE * 10, interval), (True, 7.0))


@habit
def posix_timer():
    class Spec(ctypes.Structure):
        _fields_ = [(name, ctypes.c_long) for name in ("each", "each_ns", "left", "left_ns")]

    event = (ctypes.c_int * 16)()
    event[3] = 1  # SIGEV_NONE
    timer = ctypes.c_void_p()
    same(libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)), 0)
    same(libc.timer_settime(timer, 0, ctypes.byref(Spec(5, 0, LONG, 0)), None), 0)
    while True:
        yield
        now = Spec()
        same(libc.timer_gettime(timer, ctypes.byref(now)), 0)
        same((now.each, abs(LONG - now.left) < PATIENCE * 10), (5, True))


@habit
def environment():
    os.environ["HABIT"] = "kept"
    libc.getenv.restype = ctypes.c_char_p
    while True:
        yield
        same((os.environ["HABIT"], libc.getenv(b"HABIT")), ("kept", b"kept"))


@habit
def working_folder():
    os.mkdir(path("work"))
    os.chdir(path("work"))
    while True:
        yield
        same(os.getcwd(), path("work"))


@habit
def file_mode_mask():
    os.umask(0o027)
    while True:
        yield
        same(os.umask(0o027), 0o027)


@habit
def resource_limits():
    want = {resource.RLIMIT_CORE: (4096, 8192), resource.RLIMIT_NOFILE: (900, 1000), resource.RLIMIT_STACK: (4 << 20, 64 << 20)}
    for limit, values in want.items():
        resource.setrlimit(limit, values)
    while True:
        yield
        for limit, values in want.items():
            same(resource.getrlimit(limit), values)


@habit
def priority():
    os.nice(3)
    while True:
        yield
        same(os.getpriority(os.PRIO_PROCESS, 0), 3)


@habit
def name():
    set_name, get_name = 15, 16  # PR_SET_NAME, PR_GET_NAME
    libc.prctl(set_name, b"habitual", 0, 0, 0)
    while True:
        yield
        now = ctypes.create_string_buffer(16)
        libc.prctl(get_name, now, 0, 0, 0)
        same(now.value, b"habitual")


# ---- memory


@habit
def large_memory():
    block = bytes(range(256)) * 4096
    data = bytearray(block * 64)
    while True:
        yield
        for at in range(0, len(data), len(block)):
            same(data[at : at + len(block)] == block, True)


@habit
def memory_with_holes():
    page, count, at = mmap.PAGESIZE, 4096, 1 << 40  # where the kernel puts nothing by itself
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    rights, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    same(libc.mmap(at, page * count, rights, kind, -1, 0), at)
    same(libc.madvise(at, page * count // 4, mmap.MADV_HUGEPAGE), 0)
    touched = [n for n in range(0, count, 7) if not 2000 <= n < 3000]
    for n in touched:
        ctypes.memset(at + n * page, n % 251 + 1, page)
    same(libc.munmap(at + 2000 * page, 500 * page), 0)
    same(libc.mprotect(at + 2500 * page, 500 * page, 0), 0)

    def mapped():
        """The ranges of pages that are mapped, and how."""
        found = []
        with open("/proc/self/maps") as maps:
            for line in maps:
                ends, rights = line.split()[:2]
                begin, end = (int(end, 16) for end in ends.split("-"))
                begin, end = max(begin, at), min(end, at + count * page)
                if begin < end and found and found[-1][1:] == [begin, rights]:
                    found[-1][1] = end
                elif begin < end:
                    found.append([begin, end, rights])
        return found

    want = mapped()
    while True:
        yield
        same(mapped(), want)
        for n in touched:
            same(ctypes.string_at(at + n * page, page) == bytes([n % 251 + 1]) * page, True)
        for n in range(1, 2000, 7):
            same(ctypes.string_at(at + n * page, page) == bytes(page), True)


@habit
def private_mapping():
    with open(written("private", bytes(range(256)) * 64), "r+b") as f:
        m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    m[5000] = 1
    while True:
        yield
        same((m[5000], m[5001], m[10000]), (1, 5001 % 256, 10000 % 256))
        same(contents("private")[5000], 5000 % 256)


@habit
def shared_mapping():
    with open(written("shared", bytes(8192)), "r+b") as f:
        m = mmap.mmap(f.fileno(), 0)
    m[5000] = n = 1
    while True:
        yield
        same(m[5000], n)
        m[5000] = n = n % 255 + 1
        same(contents("shared")[5000], n)


habits += habits_named.habits

# ---- files


@habit
def appended_file():
    written("log")
    fd, all = os.open(path("log"), os.O_WRONLY | os.O_APPEND), b"0123456789"
    while True:
        os.write(fd, b"line\n")
        all += b"line\n"
        yield
        same(fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND), os.O_WRONLY | os.O_APPEND)
        same((contents("log"), os.lseek(fd, 0, os.SEEK_CUR)), (all, len(all)))


@habit
def place_in_file():
    fd = os.open(written("read"), os.O_RDONLY)
    other = os.dup(fd)
    os.set_inheritable(other, True)
    while True:
        os.lseek(fd, 4, os.SEEK_SET)
        yield
        same((os.read(fd, 2), os.read(other, 2)), (b"45", b"67"))  # they have one place
        same((os.get_inheritable(fd), os.get_inheritable(other)), (False, True))


@habit
def deleted_file():
    fd = os.open(written("deleted"), os.O_RDWR)
    os.unlink(path("deleted"))
    os.lseek(fd, 3, os.SEEK_SET)
    while True:
        yield
        same((os.pread(fd, 100, 0), os.lseek(fd, 0, os.SEEK_CUR), os.fstat(fd).st_nlink), (b"0123456789", 3, 0))


@habit
def memory_file():
    fd = os.memfd_create("habit")
    os.write(fd, b"0123456789")
    while True:
        os.lseek(fd, 6, os.SEEK_SET)
        yield
        same((os.pread(fd, 100, 0), os.read(fd, 2)), (b"0123456789", b"67"))


@habit
def locks():
    whole, part = os.open(written("whole"), os.O_RDWR), os.open(written("part"), os.O_RDWR)
    fcntl.flock(whole, fcntl.LOCK_EX)
    fcntl.lockf(part, fcntl.LOCK_EX, 3, 2)

    def refused(take):
        try:
            take()
            return False
        except BlockingIOError:
            return True

    def others():
        f, p = os.open(path("whole"), os.O_RDWR), os.open(path("part"), os.O_RDWR)
        now = fcntl.LOCK_EX | fcntl.LOCK_NB
        fcntl.lockf(p, now, 2, 0)
        return refused(lambda: fcntl.flock(f, now)) and refused(lambda: fcntl.lockf(p, now, 1, 4))

    while True:
        yield
        same(elsewhere(others), True)


@habit
def watched_folder():
    os.mkdir(path("watched"))
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    created = 0x100  # IN_CREATE
    watch, n = libc.inotify_add_watch(fd, path("watched").encode(), created), 0
    while True:
        yield
        n += 1
        written(f"watched/{n}")
        event = come(fd, 4096)
        number, mask, _, length = struct.unpack_from("iIII", event)
        same((number, mask, event[16 : 16 + length].rstrip(b"\0")), (watch, created, str(n).encode()))


# ---- what is read and written at two ends


@habit
def pipe():
    r, w = os.pipe()
    while True:
        os.write(w, b"unread")
        yield
        same(come(r, 100), b"unread")


@habit
def named_pipe():
    os.mkfifo(path("fifo"))
    r = os.open(path("fifo"), os.O_RDONLY | os.O_NONBLOCK)
    w = os.open(path("fifo"), os.O_WRONLY)
    while True:
        os.write(w, b"unread")
        yield
        same(come(r, 100), b"unread")


@habit
def socket_pair():
    a, b = socket.socketpair()
    c, d = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        a.send(b"unread")
        c.send(b"one")
        c.send(b"two")
        yield
        same((come(b.fileno(), 100), come(d.fileno(), 100), come(d.fileno(), 100)), (b"unread", b"one", b"two"))
        b.send(b"back")
        same(come(a.fileno(), 100), b"back")


def answers(listener, family, address):
    """Looks whether a connection to an address comes to a socket."""
    with socket.socket(family) as client:
        client.settimeout(PATIENCE)
        client.connect(address)
        listener.settimeout(PATIENCE)
        server, _ = listener.accept()
        with server:
            client.sendall(b"hello")
            same(come(server.fileno(), 100), b"hello")


@habit
def listening_socket():
    s = socket.socket(socket.AF_UNIX)
    s.bind(path("socket"))
    s.listen()
    while True:
        yield
        answers(s, socket.AF_UNIX, path("socket"))


@network
def listening_network_socket():
    s = socket.create_server(("127.0.0.1", 0))
    address = s.getsockname()
    while True:
        yield
        same(s.getsockname(), address)
        answers(s, socket.AF_INET, address)


@network
def datagram_socket():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    address = s.getsockname()
    while True:
        yield
        same(s.getsockname(), address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.sendto(b"hello", address)
        same(come(s.fileno(), 100), b"hello")


@habit
def event_counter():
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    while True:
        os.eventfd_write(fd, 3)
        yield
        same(os.eventfd_read(fd), 3)


@habit
def bound_thread():
    PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 29, 30
    processor = max(os.sched_getaffinity(0))
    ask, answer = threading.Event(), []

    def run():
        os.sched_setaffinity(threading.get_native_id(), {processor})
        libc.prctl(PR_SET_TIMERSLACK, 7)
        answer.append(True)
        while True:
            ask.wait()
            ask.clear()
            answer.append((os.sched_getaffinity(threading.get_native_id()), libc.prctl(PR_GET_TIMERSLACK)))
    everywhere = os.sched_getaffinity(0)
    threading.Thread(target=run, daemon=True).start()
    until(lambda: answer)
    while True:
        yield
        answer.clear()
        ask.set()
        until(lambda: answer)
        same(answer, [({processor}, 7)])
        same((os.sched_getaffinity(0), libc.prctl(PR_GET_TIMERSLACK)), (everywhere, 50000))


@habit
def timer_that_is_read_late():
    fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
    every = 50_000_000  # ns
    if fd < 0 or libc.timerfd_settime(fd, 0, struct.pack("qqqq", 0, every, 0, every), None) != 0:
        raise OSError(ctypes.get_errno(), "timerfd")
    while True:
        select.select([fd], [], [], PATIENCE)  # it has expired, and expires on
        yield
        for _ in range(3):
            if struct.unpack("q", come(fd, 8))[0] < 1:
                raise ValueError("it has not expired")


@habit
def polled_pipe():
    r, w = os.pipe()
    poll = select.epoll()
    poll.register(r, select.EPOLLIN)
    while True:
        yield
        same(poll.poll(0), [])
        os.write(w, b"x")
        same(poll.poll(PATIENCE), [(r, select.EPOLLIN)])
        os.read(r, 1)


@habit
def own_terminal():
    user, program = pty.openpty()
    modes = termios.tcgetattr(program)
    modes[3] &= ~(termios.ECHO | termios.ISIG)
    termios.tcsetattr(program, termios.TCSANOW, modes)
    size = struct.pack("HHHH", 33, 77, 0, 0)
    fcntl.ioctl(user, termios.TIOCSWINSZ, size)
    while True:
        yield
        same((termios.tcgetattr(program), fcntl.ioctl(program, termios.TIOCGWINSZ, bytes(8))), (modes, size))
        os.write(user, b"typed\n")
        same(come(program, 100), b"typed\n")
        os.write(program, b"shown")
        same(come(user, 100), b"shown")


# ---- threads and other processes


@habit
def sleeping_thread():
    ticks = [0]

    def tick():
        while True:
            time.sleep(0.01)
            ticks[0] += 1

    def sleep():
        time.sleep(LONG)

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    threading.Thread(target=tick, daemon=True).start()
    while True:
        yield
        before = ticks[0]
        until(lambda: ticks[0] > before + 1)
        same(sleeper.is_alive(), True)


@habit
def waiting_thread():
    condition, asked, answered = threading.Condition(), [0], [0]

    def answer():
        while True:
            with condition:
                condition.wait_for(lambda: asked[0] > answered[0])
                answered[0] = asked[0]
                condition.notify_all()

    threading.Thread(target=answer, daemon=True).start()
    while True:
        yield
        with condition:
            asked[0] += 1
            condition.notify_all()
            same(condition.wait_for(lambda: answered[0] == asked[0], PATIENCE), True)


@habit
def device():
    cuda = ctypes.CDLL("libcuda.so.1")
    data = os.urandom(1 << 20)
    number, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    same(cuda.cuInit(0), 0)
    same(cuda.cuDeviceGet(ctypes.byref(number), 0), 0)
    same(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, number), 0)
    same(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(len(data))), 0)
    same(cuda.cuMemcpyHtoD_v2(memory, data, ctypes.c_size_t(len(data))), 0)
    while True:
        yield
        back = ctypes.create_string_buffer(len(data))
        same(cuda.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(len(data))), 0)
        same(back.raw == data, True)


@habit
def forked_worker():
    fork = multiprocessing.get_context("fork")
    questions, replies, shared = fork.Queue(), fork.Queue(), mmap.mmap(-1, 4096)

    def work():
        while True:
            n = questions.get()
            shared[n] = n
            replies.put(n * n)

    worker = fork.Process(target=work)
    worker.start()  # after the device: it has what its parent has of that
    n = 0
    try:
        while True:
            n += 1
            questions.put(n)
            same((replies.get(timeout=PATIENCE), shared[n]), (n * n, n))
            yield
            same(shared[n], n)
    finally:
        worker.kill()


@habit
def program_at_pipes():
    c = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
    while True:
        c.stdin.write(b"line\n")
        same(come(c.stdout.fileno(), 100), b"line\n")
        yield
        same((c.poll(), os.getsid(c.pid)), (None, c.pid))


@habit
def program_on_own_terminal():
    child, user = pty.fork()
    if child == 0:
        os.execvp("cat", ["cat"])
    while True:
        os.write(user, b"line\n")
        all = b""
        while all.count(b"line\r\n") < 2:  # the terminal's echo, and the program's
            all += come(user, 100)
        yield
        same(os.getsid(child), child)


@habit
def stopped_child():
    c = subprocess.Popen(["sleep", str(LONG)])
    c.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, c.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        while True:
            yield
            with open(f"/proc/{c.pid}/stat") as stat:
                same(stat.read().split()[2], "T")
    finally:
        c.kill()


@habit
def ended_child():
    while True:
        child = os.fork()
        if child == 0:
            os._exit(7)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        yield
        same(os.waitpid(child, os.WNOHANG), (child, 7 << 8))


def main():
    running = []
    for f in habits:
        running.append((f.__name__, f()))
        next(running[-1][1])
    print("ready", flush=True)
    for _ in sys.stdin:
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        for name, one in running:
            try:
                next(one)
            except Exception as e:
                print(f"{name}: {type(e).__name__}: {e}", flush=True)
        faulthandler.cancel_dump_traceback_later()
        print("checked", len(running), flush=True)
    for _, one in running:
        one.close()
    os._exit(0)  # without waiting for threads


main()
