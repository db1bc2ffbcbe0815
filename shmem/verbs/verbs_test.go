package verbs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
	"github.com/lgpu/lgpu/shmem/verbs"
	"github.com/lgpu/lgpu/shmem/verbs/verbstest"
)

func TestNoLibrary(t *testing.T) {
	for _, o := range []verbs.Options{{Verbs: "libnosuch.so"}, {Verbs: "libc.so.6", MLX5: "libnosuch.so"}} {
		_, err := verbs.Open(o)
		if !errors.Is(err, nic.ErrNoDevice) || !strings.Contains(err.Error(), "no mlx5 device") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	// A library that is not libibverbs.
	if _, err := verbs.Open(verbs.Options{Verbs: "libc.so.6", MLX5: "libc.so.6"}); !errors.Is(err, nic.ErrNotSupported) {
		t.Errorf("libc: %v", err)
	}
}

func TestNoDevice(t *testing.T) {
	f := verbstest.New(t, verbstest.Machine{}) // but for one of another maker
	p, err := verbs.Open(f.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if list, err := p.NICs(); !errors.Is(err, nic.ErrNoDevice) || !strings.Contains(err.Error(), "no mlx5 device") {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := p.Open(nic.Info{Name: "mlx5_0", Port: 1}); !errors.Is(err, nic.ErrNoDevice) {
		t.Errorf("open: %v", err)
	}
}

// The libraries of this machine, if it has them, load and answer.
func TestInstalledLibraries(t *testing.T) {
	p, err := verbs.Open(verbs.Options{GIDIndex: -1, RoCEVersion: 2, Log: t.Logf})
	if err != nil {
		t.Skip(err)
	}
	list, err := p.NICs()
	t.Logf("%+v, %v", list, err)
	if err != nil && !errors.Is(err, nic.ErrNoDevice) {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestPorts(t *testing.T) {
	v4 := func(a, b byte, device int) (g [16]byte) {
		return [16]byte{10: 0xff, 11: 0xff, 12: a, 13: b, 15: byte(device + 1)}
	}
	for _, c := range []struct {
		what     string
		ethernet bool
		change   func(*verbs.Options)
		gid      [16]byte // of device 0; its last byte is the device's number plus 1
		index    int
	}{
		{"InfiniBand", false, func(*verbs.Options) {}, [16]byte{0xfe, 0x80, 15: 1}, 0},
		{"RoCE v2", true, func(*verbs.Options) {}, v4(10, 0, 0), 3},
		{"RoCE v1", true, func(o *verbs.Options) { o.RoCEVersion = 1 }, v4(10, 0, 0), 2},
		{"a range", true, func(o *verbs.Options) { o.Range = netip.MustParsePrefix("10.1.0.0/16") }, v4(10, 1, 0), 5},
		{"IPv6", true, func(o *verbs.Options) { o.IPv6 = true }, [16]byte{0xfd, 15: 1}, 7},
		{"an index", true, func(o *verbs.Options) { o.GIDIndex = 4 }, v4(10, 1, 0), 4},
	} {
		t.Run(c.what, func(t *testing.T) {
			f := verbstest.New(t, verbstest.Machine{NICs: 2, Ethernet: c.ethernet})
			o := f.Options()
			c.change(&o)
			p, err := verbs.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			list, err := p.NICs()
			if err != nil || len(list) != 2 {
				t.Fatalf("%+v, %v", list, err)
			}
			for i, n := range list {
				want := nic.Info{Name: fmt.Sprintf("mlx5_%d", i), Port: 1, PCI: fmt.Sprintf("0000:%02x:00.0", 0x20+i), Path: n.Path, NUMA: i, Up: true,
					Link: nic.InfiniBand, LID: uint16(100 + i), GID: c.gid, GIDIndex: c.index, MTU: 4096, Mbps: 200_000}
				want.GID[15] += byte(i)
				if c.ethernet {
					want.Link, want.LID, want.MTU = nic.Ethernet, 0, 1024
				}
				if n != want || !strings.HasSuffix(n.Path, fmt.Sprintf("pci0000:%02x/%s", 0x10+i, n.PCI)) {
					t.Errorf("%+v, expected %+v", n, want)
				}
			}
		})
	}
	f := verbstest.New(t, verbstest.Machine{NICs: 1, Ethernet: true})
	o := f.Options()
	o.Range = netip.MustParsePrefix("192.168.0.0/16")
	p, err := verbs.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.NICs(); !errors.Is(err, nic.ErrNoDevice) || !strings.Contains(err.Error(), "LSHMEM_IB_GID_INDEX") {
		t.Errorf("no GID in the range: %v", err)
	}
	f.SetPortState(1)
	if list, err := p.NICs(); err != nil || len(list) != 1 || list[0].Up {
		t.Errorf("a port that is down: %+v, %v", list, err)
	}
}

// pages is memory as ibgda's platforms give it.
func pages(t testing.TB, bytes int) nic.Buffer {
	t.Helper()
	m, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	return nic.Buffer{Address: uint64(uintptr(unsafe.Pointer(&m[0]))), Bytes: uint64(bytes), Host: m, FD: -1}
}

const depth = 256

// side is one NIC with two queue pairs.
type side struct {
	n      nic.NIC
	memory nic.Memory
	queues []nic.QueueMemory
	pairs  []nic.Queue
}

func (s *side) open(p *verbs.Provider, info nic.Info, buffers []nic.Buffer) (err error) {
	if s.n, err = p.Open(info); err != nil {
		return err
	}
	if s.memory, err = s.n.Register(buffers[0], nic.Full|nic.RelaxedOrdering); err != nil {
		return err
	}
	for _, b := range buffers[1:] {
		m, err := s.n.RegisterQueues(b)
		if err != nil {
			return err
		}
		s.queues = append(s.queues, m)
	}
	for i := range uint64(2) {
		q, err := s.n.CreateQueue(nic.QueueConfig{Depth: depth, WQ: nic.Position{Memory: s.queues[0], Offset: i * depth * 64},
			CQ: nic.Position{Memory: s.queues[1], Offset: i * depth * 64}, Record: nic.Position{Memory: s.queues[2], Offset: i * 64}})
		if err != nil {
			return err
		}
		s.pairs = append(s.pairs, q)
	}
	return nil
}

func (s *side) close() error {
	var errs []error
	for _, q := range s.pairs {
		errs = append(errs, q.Close())
	}
	for _, q := range s.queues {
		errs = append(errs, q.Close())
	}
	if s.memory != nil {
		errs = append(errs, s.memory.Close())
	}
	if s.n != nil {
		errs = append(errs, s.n.Close())
	}
	return errors.Join(errs...)
}

// run does all that a transport does with a provider, between two NICs, and undoes it.
func run(o verbs.Options, buffers [2][]nic.Buffer, between func(a, b *side)) (err error) {
	p, err := verbs.Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	list, err := p.NICs()
	if err != nil {
		return err
	}
	if len(list) < 2 {
		return fmt.Errorf("%d of 2 NICs are left", len(list))
	}
	var sides [2]side
	defer func() { err = errors.Join(err, sides[0].close(), sides[1].close()) }()
	for i := range sides {
		if err := sides[i].open(p, list[i], buffers[i]); err != nil {
			return err
		}
	}
	for i := range 2 {
		for k := range sides {
			if err := sides[k].pairs[i].Connect(context.Background(), sides[1-k].pairs[i].Endpoint()); err != nil {
				return err
			}
		}
	}
	if between != nil {
		between(&sides[0], &sides[1])
	}
	return nil
}

func twoSides(t testing.TB) (buffers [2][]nic.Buffer) {
	for i := range buffers {
		for _, bytes := range []int{64 << 10, 2 * depth * 64, 2 * depth * 64, 4096} {
			buffers[i] = append(buffers[i], pages(t, bytes))
		}
	}
	return buffers
}

// word reads bits hi..lo, as the public layouts print them, of the 32-bit word at a byte offset.
func word(command []byte, offset, hi, lo int) uint32 {
	return binary.BigEndian.Uint32(command[offset:]) >> lo & (1<<(hi-lo+1) - 1)
}

// Commands have every field where it belongs, and nothing but those set. The offsets here are written down by
// themselves, by word and bit as in the device's reference, not by the table that the package encodes with.
func TestCommands(t *testing.T) {
	for _, ethernet := range []bool{false, true} {
		t.Run(map[bool]string{false: "InfiniBand", true: "Ethernet"}[ethernet], func(t *testing.T) {
			f := verbstest.New(t, verbstest.Machine{NICs: 2, Ethernet: ethernet})
			o := f.Options()
			o.TrafficClass, o.ServiceLevel, o.PartitionKey, o.Retries, o.AckTimeout, o.Reads = 106, 5, 3, 6, 19, 8
			var numbers [2][2]uint32
			if err := run(o, twoSides(t), func(a, b *side) {
				for i := range 2 {
					numbers[i] = [2]uint32{a.pairs[i].Number(), b.pairs[i].Number()}
				}
			}); err != nil {
				t.Fatal(err)
			}
			type expect struct {
				name         string
				byte, hi, lo int
				value        uint32
			}
			compare := func(what string, command []byte, expected []expect) {
				t.Helper()
				rest := append([]byte(nil), command...)
				for _, e := range expected {
					if got := word(command, e.byte, e.hi, e.lo); got != e.value {
						t.Errorf("%s: %s is %#x, expected %#x", what, e.name, got, e.value)
					}
					w := binary.BigEndian.Uint32(rest[e.byte:])
					binary.BigEndian.PutUint32(rest[e.byte:], w&^uint32((1<<(e.hi-e.lo+1)-1)<<e.lo))
				}
				for i, b := range rest {
					if b != 0 {
						t.Errorf("%s: byte %#x has %#x in no field that is expected", what, i, b)
					}
				}
			}
			head := func(opcode uint32) expect { return expect{"opcode", 0, 31, 16, opcode} }

			cqs := f.Commands(0x400)
			if len(cqs) != 4 {
				t.Fatalf("%d completion queues", len(cqs))
			}
			for i, c := range cqs[:2] {
				umem := word(c, 0x58, 31, 0) // numbers are the library's
				uar := word(c, 0x10+0x0c, 23, 0)
				record := word(c, 0x10+0x04, 31, 0)
				if umem == 0 || uar == 0 || record == 0 || umem == record {
					t.Errorf("completion queue %d: memory %d, record's %d, register %d", i, umem, record, uar)
				}
				compare("CREATE_CQ", c, []expect{head(0x400), {"dbr_umem_valid", 0x10, 25, 25, 1}, {"cc", 0x10, 20, 20, 1}, {"oi", 0x10, 17, 17, 1},
					{"dbr_umem_id", 0x14, 31, 0, record}, {"log_cq_size", 0x1c, 28, 24, 8}, {"uar_page", 0x1c, 23, 0, uar}, {"c_eqn", 0x24, 7, 0, 0x42},
					{"dbr_addr", 0x4c, 31, 0, uint32(i*64 + nic.RecordCQ)}, {"cq_umem_offset", 0x54, 31, 0, uint32(i * depth * 64)},
					{"cq_umem_id", 0x58, 31, 0, umem}, {"cq_umem_valid", 0x5c, 31, 31, 1}})
			}
			qps := f.Commands(0x500)
			if len(qps) != 4 {
				t.Fatalf("%d queue pairs", len(qps))
			}
			for i, c := range qps[:2] {
				umem, uar, record := word(c, 0x108, 31, 0), word(c, 0x18+0x0c, 23, 0), word(c, 0x18+0xe4, 31, 0)
				cqn, pd := word(c, 0x18+0x7c, 23, 0), word(c, 0x18+0x04, 23, 0)
				if umem == 0 || uar == 0 || record == 0 || cqn == 0 || pd == 0 {
					t.Errorf("queue pair %d: memory %d, record's %d, register %d, completion queue %d, domain %d", i, umem, record, uar, cqn, pd)
				}
				compare("CREATE_QP", c, []expect{head(0x500), {"st", 0x18, 23, 16, 0}, {"pm_state", 0x18, 12, 11, 3}, {"pd", 0x1c, 23, 0, pd},
					{"log_sq_size", 0x20, 14, 11, 8}, {"uar_page", 0x24, 23, 0, uar}, {"cqn_snd", 0x18 + 0x7c, 23, 0, cqn},
					{"cqn_rcv", 0x18 + 0x9c, 23, 0, cqn}, {"dbr_addr", 0x18 + 0xa4, 31, 0, uint32(i * 64)}, {"rq_type", 0x18 + 0xac, 26, 24, 3},
					{"dbr_umem_valid", 0x18 + 0xd0, 28, 28, 1}, {"dbr_umem_id", 0x18 + 0xe4, 31, 0, record},
					{"wq_umem_offset", 0x104, 31, 0, uint32(i * depth * 64)}, {"wq_umem_id", 0x108, 31, 0, umem}, {"wq_umem_valid", 0x10c, 31, 31, 1}})
			}
			const path = 0x18 + 0x18
			reads := uint32(3) // log2 of 8
			for i, c := range f.Commands(0x502)[:2] {
				compare("RST2INIT_QP", c, []expect{head(0x502), {"qpn", 0x08, 23, 0, numbers[0][i]}, {"pm_state", 0x18, 12, 11, 3},
					{"rre", 0x18 + 0x90, 15, 15, 1}, {"rwe", 0x18 + 0x90, 14, 14, 1}, {"rae", 0x18 + 0x90, 13, 13, 1},
					{"atomic_mode", 0x18 + 0x90, 19, 16, 3}, {"vhca_port_num", path + 0x24, 23, 16, 1}, {"pkey_index", path, 15, 0, 3}})
			}
			for i, c := range f.Commands(0x503)[:2] {
				expected := []expect{head(0x503), {"qpn", 0x08, 23, 0, numbers[0][i]}, {"opt_param_mask", 0x10, 31, 0, 0xe},
					{"log_msg_max", 0x20, 28, 24, 30}, {"remote_qpn", 0x18 + 0x14, 23, 0, numbers[0][1-i]},
					{"rre", 0x18 + 0x90, 15, 15, 1}, {"rwe", 0x18 + 0x90, 14, 14, 1}, {"rae", 0x18 + 0x90, 13, 13, 1},
					{"atomic_mode", 0x18 + 0x90, 19, 16, 3}, {"log_rra_max", 0x18 + 0x90, 23, 21, reads}, {"min_rnr_nak", 0x18 + 0x94, 28, 24, 12},
					{"pkey_index", path, 15, 0, 3}, {"tclass", path + 0x0c, 27, 20, 106}, {"vhca_port_num", path + 0x24, 23, 16, 1}}
				if ethernet {
					port := 0xc000 | (numbers[0][0]^numbers[0][1])&0x3fff
					expected = append(expected, []expect{{"mtu", 0x20, 31, 29, 3}, {"src_addr_index", path + 8, 23, 16, 3},
						{"hop_limit", path + 8, 7, 0, 64}, {"rgid 95..64", path + 0x10, 31, 0, 0}, {"rgid 63..32", path + 0x18, 31, 0, 0xffff},
						{"rgid 31..0", path + 0x1c, 31, 0, uint32(0x0a000002 - i)}, {"dscp", path + 0x20, 21, 16, 26}, {"ecn", path + 0x20, 23, 22, 2},
						{"udp_sport", path + 0x20, 15, 0, port}, {"eth_prio", path + 0x24, 30, 28, 5}, {"rmac_47_32", path + 0x24, 15, 0, 0x02aa},
						{"rmac_31_0", path + 0x28, 31, 0, uint32(0xbbccdd02 - i)}}...)
				} else {
					expected = append(expected, expect{"mtu", 0x20, 31, 29, 5}, expect{"rlid", path + 4, 15, 0, uint32(101 - i)},
						expect{"sl", path + 0x24, 27, 24, 5})
				}
				compare("INIT2RTR_QP", c, expected)
			}
			for i, c := range f.Commands(0x504)[:2] {
				compare("RTR2RTS_QP", c, []expect{head(0x504), {"qpn", 0x08, 23, 0, numbers[0][i]}, {"log_sra_max", 0x18 + 0x70, 23, 21, reads},
					{"retry_count", 0x18 + 0x70, 18, 16, 6}, {"rnr_retry", 0x18 + 0x70, 15, 13, 7}, {"ack_timeout", path + 8, 31, 27, 19}})
			}
			queries := f.Commands(0x100)
			if len(queries) != 4 {
				t.Fatalf("%d queries", len(queries))
			}
			compare("QUERY_HCA_CAP", queries[0], []expect{head(0x100), {"op_mod", 4, 15, 0, 1}})
			compare("QUERY_HCA_CAP", queries[1], []expect{head(0x100), {"op_mod", 4, 15, 0, 7}})
		})
	}
}

func TestCapabilities(t *testing.T) {
	for _, c := range []struct {
		lacks verbstest.Lack
		check func(nic.Capabilities, error) bool
	}{
		{0, func(c nic.Capabilities, err error) bool {
			return err == nil && c.MaxDepth == 32768 && c.MaxMessage == 1<<30 && c.Atomics8 && c.MaskedAtomics && c.Collapsed && c.HostQueues &&
				c.DeviceQueues && !c.MemoryDoorbell && c.Register != 0 && c.Register%nic.RegisterBytes == 0 && !c.Ordered
		}},
		{verbstest.LackMaskedAtomics, func(c nic.Capabilities, err error) bool { return err == nil && c.Atomics8 && !c.MaskedAtomics }},
		{verbstest.LackOverrunIgnore, func(c nic.Capabilities, err error) bool { return err == nil && !c.Collapsed }},
		{verbstest.LackUncachedRegisters, func(c nic.Capabilities, err error) bool { return err == nil && c.Register != 0 }},
		{verbstest.LackRC, func(_ nic.Capabilities, err error) bool { return errors.Is(err, nic.ErrNotSupported) }},
	} {
		f := verbstest.New(t, verbstest.Machine{NICs: 1, Lacks: c.lacks})
		p, err := verbs.Open(f.Options())
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Open(nic.Info{Name: "mlx5_0", Port: 1})
		var got nic.Capabilities
		if err == nil {
			got = n.Capabilities()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
		if !c.check(got, err) {
			t.Errorf("lacking %#x: %+v, %v", c.lacks, got, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// GPU memory registers by a dma-buf where that works, else by address, else not, saying both reasons.
func TestWaysToRegister(t *testing.T) {
	for _, c := range []struct {
		lacks verbstest.Lack
		fd    int
		ok    bool
	}{
		{0, 3, true}, {0, -1, true}, {verbstest.LackDMABuf, 3, true}, {verbstest.LackPeerMemory, 3, true}, {verbstest.LackPeerMemory, -1, false},
		{verbstest.LackDMABuf | verbstest.LackPeerMemory, 3, false},
	} {
		f := verbstest.New(t, verbstest.Machine{NICs: 1, Lacks: c.lacks})
		p, err := verbs.Open(f.Options())
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Open(nic.Info{Name: "mlx5_0", Port: 1})
		if err != nil {
			t.Fatal(err)
		}
		b := pages(t, 8192)
		b.Host, b.FD = nil, c.fd
		f.SetDMABuf(b.Address)
		m, err := n.Register(b, nic.Full)
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		q, queueErr := n.RegisterQueues(b)
		if (queueErr == nil) != c.ok {
			t.Errorf("%+v: queues: %v", c, queueErr)
		}
		if !c.ok {
			for _, err := range []error{err, queueErr} {
				if !strings.Contains(err.Error(), "by address") || strings.Contains(err.Error(), "by dma-buf") != (c.fd >= 0) || !errors.Is(err, syscall.EFAULT) {
					t.Errorf("%+v: %v", c, err)
				}
			}
		} else if err := errors.Join(m.Close(), m.Close(), q.Close(), q.Close()); err != nil {
			t.Error(err)
		}
		if err := errors.Join(n.Close(), n.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestRegisterPages: queues have register pages of their own, one for all where the library gives a context only one.
func TestRegisterPages(t *testing.T) {
	for _, c := range []struct {
		lacks verbstest.Lack
		pages int
	}{{0, 3}, {verbstest.LackDedicatedRegisters, 1}, {verbstest.LackUncachedRegisters, 3}} {
		f := verbstest.New(t, verbstest.Machine{NICs: 1, Lacks: c.lacks})
		p, err := verbs.Open(f.Options())
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Open(nic.Info{Name: "mlx5_0", Port: 1})
		if err != nil {
			t.Fatal(err)
		}
		b := pages(t, 3*(2*depth*64+4096))
		memory, err := n.RegisterQueues(b)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[uint64]bool{}
		var queues []nic.Queue
		for i := range uint64(3) {
			at := func(offset uint64) nic.Position { return nic.Position{Memory: memory, Offset: offset} }
			q, err := n.CreateQueue(nic.QueueConfig{Depth: depth, WQ: at(i * depth * 64), CQ: at((3 + i) * depth * 64), Record: at(6*depth*64 + i*64)})
			if err != nil {
				t.Fatal(err)
			}
			queues = append(queues, q)
			seen[q.Register()] = true
		}
		if len(seen) != c.pages {
			t.Errorf("%+v: %d register pages", c, len(seen))
		}
		for _, q := range queues {
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(memory.Close(), n.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Each call of the libraries fails once: every time there is an error, and nothing is left. What ends an object is an
// error too, but for NICs that are left out of a list.
func TestEveryFailure(t *testing.T) {
	for _, ethernet := range []bool{false, true} {
		f := verbstest.New(t, verbstest.Machine{NICs: 2, Ethernet: ethernet})
		buffers := twoSides(t)
		o := f.Options()
		o.Log = nil
		f.FailAt(0)
		if err := run(o, buffers, nil); err != nil {
			t.Fatal(err)
		}
		calls := f.Calls()
		if calls < 50 {
			t.Fatalf("only %d calls", calls)
		}
		survived := 0
		for k := 1; k <= calls; k++ {
			for i := range buffers { // as the caller promises
				clear(buffers[i][3].Host)
			}
			f.FailAt(k)
			err := run(o, buffers, nil)
			if n := f.Live(); n != 0 {
				t.Fatalf("call %d of %d failed (%v): %d objects are left", k, calls, err, n)
			}
			if err == nil {
				survived++
				continue
			}
			if text := err.Error(); strings.Contains(text, "%!") || len(text) > 600 {
				t.Errorf("call %d: %s", k, text)
			}
		}
		// A NIC that cannot be asked is left out; register pages have a second kind, and are shared; closing after a
		// look at a device tells nobody.
		if survived > 12 {
			t.Errorf("%d of %d failures went by", survived, calls)
		}
		t.Logf("%d calls, %d failures without consequence", calls, survived)
	}
}

func TestBadQueues(t *testing.T) {
	f := verbstest.New(t, verbstest.Machine{NICs: 2})
	if err := run(f.Options(), twoSides(t), func(a, b *side) {
		good := nic.QueueConfig{Depth: depth, WQ: nic.Position{Memory: a.queues[0]}, CQ: nic.Position{Memory: a.queues[1]}, Record: nic.Position{Memory: a.queues[2], Offset: 128}}
		for what, change := range map[string]func(*nic.QueueConfig){
			"a depth that is no power of two": func(c *nic.QueueConfig) { c.Depth = 100 },
			"a depth beyond the device's":     func(c *nic.QueueConfig) { c.Depth = 65536 },
			"no depth":                        func(c *nic.QueueConfig) { c.Depth = 0 },
			"a queue beyond its memory":       func(c *nic.QueueConfig) { c.WQ.Offset = depth * 64 * 2 },
			"a negative offset":               func(c *nic.QueueConfig) { c.CQ.Offset = 1<<64 - 64 },
			"no record":                       func(c *nic.QueueConfig) { c.Record.Memory = nil },
			"memory of another NIC":           func(c *nic.QueueConfig) { c.WQ.Memory = b.queues[0] },
			"an odd offset":                   func(c *nic.QueueConfig) { c.WQ.Offset = 64 },
		} {
			c := good
			change(&c)
			if q, err := a.n.CreateQueue(c); err == nil {
				t.Errorf("a queue with %s was made", what)
				q.Close()
			}
		}
		q, err := a.n.CreateQueue(good)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		remote := b.pairs[0].Endpoint()
		for what, change := range map[string]func(*nic.Endpoint){
			"another kind of link": func(e *nic.Endpoint) { e.Link = nic.Ethernet },
			"no MTU":               func(e *nic.Endpoint) { e.MTU = 0 },
			"an odd MTU":           func(e *nic.Endpoint) { e.MTU = 1500 },
		} {
			e := remote
			change(&e)
			if err := q.Connect(context.Background(), e); !errors.Is(err, nic.ErrNotSupported) {
				t.Errorf("connect with %s: %v", what, err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}
