package tenant

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// tenantEnv makes the test binary a tenant of the socket that it names: a process that does on its connection what its
// standard input says, a line each, and answers a line each.
const tenantEnv = "LGPU_TEST_TENANT"

func TestMain(m *testing.M) {
	if socket := os.Getenv(tenantEnv); socket != "" {
		(&program{socket: socket, fd: -1, usageFD: -1}).run()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program is the tenant's side, as the interposer would be.
type program struct {
	socket  string
	fd      int
	client  uint32
	id      uint64
	limits  *region.Limits
	usage   *region.Usage
	usageFD int
	unseen  bool
	forges  bool
	store   int // descriptor of the last Store, 0 if none came
	held    [region.MaxDevices]uint64
}

func (p *program) run() {
	if len(os.Args) > 1 { // its test waits before it says more, which the process before could have read
		fmt.Println("ready")
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer, err := p.do(words[0], words[1:])
		if err != nil {
			answer = "error " + err.Error()
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
	}
}

func (p *program) do(command string, args []string) (string, error) {
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(args[i], 0, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return n
	}
	switch command {
	case "pid":
		return strconv.Itoa(os.Getpid()), nil
	case "connect":
		return "ok", p.connect()
	case "say": // kind, device, value, flags: as the next message
		m := protocol.Message{
			Kind: uint16(number(0)), Version: protocol.Version, Device: uint32(number(1)),
			Value: number(2), Flags: uint32(number(3)),
		}
		return "ok", unix.Send(p.fd, m.Append(nil), unix.MSG_NOSIGNAL)
	case "hear":
		m, text, _, err := p.hear()
		return fmt.Sprintf("%d %d %d %s", m.Kind, m.Device, m.Value, text), err
	case "hear-serial":
		m, _, _, err := p.hear()
		return fmt.Sprintf("%d %d %d", m.Kind, m.Serial, m.Value), err
	case "answer": // kind, serial, value, flags, why
		m := protocol.Message{Kind: uint16(number(0)), Serial: number(1), Value: number(2), Flags: uint32(number(3)), Extra: number(4)}
		return "ok", unix.Send(p.fd, m.Append(nil), unix.MSG_NOSIGNAL)
	case "hear-level": // Keep or Store
		m, _, files, err := p.hear()
		if len(files) > 0 {
			p.store = files[0]
		}
		return fmt.Sprintf("%d %d %d %d files %d", m.Kind, m.Device, m.Serial, m.Value, len(files)), err
	case "kept": // device, serial, value, flags, why
		m := protocol.Message{Kind: protocol.Kept, Device: uint32(number(0)), Serial: number(1), Value: number(2),
			Flags: uint32(number(3)), Extra: number(4)}
		return "ok", unix.Send(p.fd, m.Append(nil), unix.MSG_NOSIGNAL)
	case "kept-store", "kept-more": // device, value: with the last store; kept-more: another one follows
		m := protocol.Message{Kind: protocol.Kept, Device: uint32(number(0)), Value: number(1)}
		if command == "kept-more" {
			m.Flags = protocol.FlagMore
		}
		return "ok", unix.Sendmsg(p.fd, m.Append(nil), unix.UnixRights(p.store), nil, unix.MSG_NOSIGNAL)
	case "hello":
		return p.hello(protocol.Message{Flags: uint32(number(0))}, -1)
	case "resume":
		return p.hello(protocol.Message{Flags: protocol.FlagReconnect, ID: p.id, Client: p.client}, p.usageFD)
	case "resume-unseen": // without saying that it goes by the new limits
		p.unseen = true
		return p.hello(protocol.Message{Flags: protocol.FlagReconnect, ID: p.id, Client: p.client}, p.usageFD)
	case "resume-as": // another lgpu and index
		return p.hello(protocol.Message{Flags: protocol.FlagReconnect, ID: number(0), Client: uint32(number(1))}, p.usageFD)
	case "resume-forged":
		return p.forged(args[0])
	case "close":
		unix.Close(p.fd)
		return "ok", nil
	case "alloc": // device, bytes
		return strconv.FormatBool(p.alloc(int(number(0)), number(1))), nil
	case "free":
		p.add(int(number(0)), -int64(number(1)))
		return "ok", nil
	case "export": // device, bytes: of what it has, given away under a descriptor
		atomic.AddUint64(&p.usage.Client[p.client].Exported[number(0)], number(1))
		return "ok", nil
	case "leave": // device, bytes: of that, which it has neither handle nor mapping of
		atomic.AddUint64(&p.usage.Client[p.client].Released[number(0)], number(1))
		return "ok", nil
	case "index":
		return strconv.Itoa(int(p.client)), nil
	case "granted":
		return strconv.FormatUint(atomic.LoadUint64(&p.limits.Device[number(0)].Granted), 10), nil
	case "memory":
		return strconv.FormatUint(atomic.LoadUint64(&p.limits.Device[number(0)].Memory), 10), nil
	case "garbage": // seed
		random := rand.New(rand.NewPCG(number(0), 0))
		words := unsafe.Slice((*uint64)(unsafe.Pointer(p.usage)), unsafe.Sizeof(*p.usage)/8)
		for i := range words {
			atomic.StoreUint64(&words[i], random.Uint64())
		}
		return "ok", nil
	case "detach": // goes on as a daemon: another process, in a session of its own, whose parent ends
		cmd := exec.Command("/proc/self/exe", "ready")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if len(args) > 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(number(0)), Gid: uint32(number(0))}
		}
		if err := cmd.Start(); err != nil {
			return "", err
		}
		os.Exit(0)
	case "exec":
		return "", unix.Exec("/proc/self/exe", []string{"tenant", "ready"}, os.Environ())
	case "keep": // a child that keeps the connection open, for ever
		in, out, err := os.Pipe()
		if err != nil {
			return "", err
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Stdin = in // which does not end, since the child has the other end too
		cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(p.fd), "connection"), out}
		if err := cmd.Start(); err != nil {
			return "", err
		}
		return strconv.Itoa(cmd.Process.Pid), nil
	case "delegate": // a child says Hello on this process's connection
		file := os.NewFile(uintptr(p.fd), "connection")
		cmd := exec.Command("/proc/self/exe")
		cmd.ExtraFiles = []*os.File{file}
		cmd.Stdin = strings.NewReader("take\nhello-here\n")
		out, err := cmd.Output()
		return string(out), err
	case "take":
		p.fd = 3
		return "ok", nil
	case "hello-here":
		return p.introduce(protocol.Message{}, -1)
	case "cgroup":
		return "ok", os.WriteFile(args[0]+"/cgroup.procs", []byte("0"), 0)
	}
	return "", fmt.Errorf("no command %q", command)
}

func (p *program) connect() (err error) {
	if p.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	return unix.Connect(p.fd, &unix.SockaddrUnix{Name: p.socket})
}

func (p *program) hear() (m protocol.Message, text string, files []int, err error) {
	var data [protocol.Size + protocol.MaxText]byte
	var control [256]byte
	n, controls, _, _, err := unix.Recvmsg(p.fd, data[:], control[:], unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return m, "", nil, err
	}
	if n == 0 {
		return m, "", nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(control[:controls])
	if err != nil {
		return m, "", nil, err
	}
	for _, c := range messages {
		fds, err := unix.ParseUnixRights(&c)
		if err != nil {
			return m, "", nil, err
		}
		files = append(files, fds...)
	}
	m, text, err = protocol.Parse(data[:n])
	return m, text, files, err
}

// hello connects and says Hello.
func (p *program) hello(m protocol.Message, fd int) (string, error) {
	if err := p.connect(); err != nil {
		return "", err
	}
	return p.introduce(m, fd)
}

func (p *program) introduce(m protocol.Message, fd int) (string, error) {
	m.Kind, m.Version = protocol.Hello, protocol.Version
	var control []byte
	if fd >= 0 {
		control = unix.UnixRights(fd)
	}
	err := unix.Sendmsg(p.fd, m.Append(nil), control, nil, unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EPERM) && !p.forges { // the daemon has the counters
		err = unix.Sendmsg(p.fd, m.Append(nil), nil, nil, unix.MSG_NOSIGNAL)
	}
	if err != nil {
		return "", err
	}
	reply, text, files, err := p.hear()
	if err != nil {
		return "", err
	}
	if reply.Kind == protocol.Refuse {
		return fmt.Sprintf("refused %d %s", reply.Value, text), nil
	}
	want := 2
	if m.Flags&protocol.FlagReconnect != 0 {
		want = 1
	}
	if reply.Kind != protocol.Welcome || reply.Version != protocol.Version || len(files) != want {
		return "", fmt.Errorf("answer %+v with %d files", reply, len(files))
	}
	limits, err := unix.Mmap(files[0], 0, region.LimitsBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return "", err
	}
	p.limits = (*region.Limits)(unsafe.Pointer(&limits[0]))
	if p.limits.ID != reply.ID || p.limits.Magic != region.Magic {
		return "", fmt.Errorf("welcome to %#x with the limits of %#x", reply.ID, p.limits.ID)
	}
	if want == 2 {
		usage, err := unix.Mmap(files[1], 0, region.UsageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return "", err
		}
		if m.Flags&protocol.FlagRejoin != 0 {
			p.held = [region.MaxDevices]uint64{} // it is to charge it anew
		}
		p.usage, p.usageFD = (*region.Usage)(unsafe.Pointer(&usage[0])), files[1]
	} else if !p.unseen {
		p.say(protocol.Need, 0, 0)
	}
	p.client, p.id = reply.Client, reply.ID
	return fmt.Sprintf("welcome %d %#x", p.client, p.id), nil
}

// forged comes back with counters that the daemon never made.
func (p *program) forged(how string) (string, error) {
	p.forges = true
	defer func() { p.forges = false }()
	size, seals := region.UsageBytes, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL
	switch how {
	case "unsealed":
		seals = 0
	case "small":
		size = 4096
	case "none":
		return p.hello(protocol.Message{Flags: protocol.FlagReconnect, ID: p.id, Client: p.client}, -1)
	}
	fd, err := unix.MemfdCreate(region.UsageName, unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return p.hello(protocol.Message{Flags: protocol.FlagReconnect, ID: p.id, Client: p.client}, fd)
}

func (p *program) say(kind uint16, device int, value uint64) error {
	return unix.Send(p.fd, protocol.Message{Kind: kind, Device: uint32(device), Value: value}.Append(nil), unix.MSG_NOSIGNAL)
}

// alloc is what the interposer does: add and look again, else ask and try once more.
func (p *program) alloc(device int, bytes uint64) bool {
	if p.add(device, int64(bytes)) {
		return true
	}
	if p.say(protocol.Need, device, bytes) != nil {
		return false
	}
	for {
		m, _, _, err := p.hear()
		if err != nil {
			return false
		}
		if m.Kind == protocol.Memory {
			return p.add(device, int64(bytes))
		}
	}
}

// add changes the counter with a ledger entry. Only one process of an lgpu does so at a time in these tests: the two
// words of the counter are written one after the other.
func (p *program) add(device int, delta int64) bool {
	d, l := &p.usage.Device[device], &p.usage.Client[p.client].Device[device]
	used := atomic.LoadUint64(&d.Memory.Bytes)
	granted := &p.limits.Device[device].Granted
	if delta > 0 && used+uint64(delta) > atomic.LoadUint64(granted) {
		return false
	}
	next := l.Begun + 1
	l.Record[next&1] = region.Operation{Before: int64(p.held[device]), Delta: delta}
	atomic.StoreUint64(&l.Begun, next)
	atomic.StoreUint64(&l.Applied, next)
	now := atomic.AddUint64(&d.Memory.Bytes, uint64(delta))
	p.held[device] += uint64(delta)
	if delta > 0 && now > atomic.LoadUint64(granted) {
		p.add(device, -delta)
		return false
	}
	return true
}

// tenantProcess is the test's handle of a program.
type tenantProcess struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ended bool
}

// start starts a tenant of a socket, with an environment of lies.
func start(t testing.TB, socket string) *tenantProcess {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), tenantEnv+"="+socket, "LGPU_REGION=/dev/zero", "LGPU_ID=1", "LGPU_LAUNCHER=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not StdoutPipe: Wait must not close it, since "detach" goes on writing after the first process has ended.
	out, child, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = child
	err = cmd.Start()
	child.Close()
	if err != nil {
		t.Fatal(err)
	}
	p := &tenantProcess{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() { p.kill(); in.Close(); out.Close() })
	return p
}

func (p *tenantProcess) pid() int { return p.cmd.Process.Pid }

// process is how the daemon names it.
func (p *tenantProcess) process() Process {
	p.t.Helper()
	now, err := procfs{}.status(p.pid())
	if err != nil {
		p.t.Fatal(err)
	}
	return Process{PID: p.pid(), Start: now.start}
}

// tell sends a command without waiting for its answer.
func (p *tenantProcess) tell(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatalf("pid %d: %v", p.pid(), err)
	}
}

// answer waits for an answer.
func (p *tenantProcess) answer() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("pid %d says %q, %v", p.pid(), line, err)
	}
	return strings.TrimSpace(line)
}

func (p *tenantProcess) ask(format string, args ...any) string {
	p.t.Helper()
	p.tell(format, args...)
	return p.answer()
}

// want asks and insists on an answer that begins so.
func (p *tenantProcess) want(prefix, format string, args ...any) {
	p.t.Helper()
	if got := p.ask(format, args...); !strings.HasPrefix(got, prefix) {
		p.t.Fatalf("pid %d: %s: %q, want %q", p.pid(), fmt.Sprintf(format, args...), got, prefix)
	}
}

// wantKeptOut asks and insists on a refusal: by the daemon, which may say so or hang up, or by the kernel.
func (p *tenantProcess) wantKeptOut(format string, args ...any) {
	p.t.Helper()
	if got := p.ask(format, args...); !strings.HasPrefix(got, "refused") && !strings.HasPrefix(got, "error") {
		p.t.Fatalf("pid %d: %s: %q", p.pid(), fmt.Sprintf(format, args...), got)
	}
}

// kill ends the process and waits until it has ended.
func (p *tenantProcess) kill() {
	if p.ended {
		return
	}
	p.ended = true
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
	p.cmd.Wait()
}
