package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// maxRegisters is the number of register pages that the queues of a NIC share out.
const maxRegisters = 32

// NIC is an open port. It implements nic.NIC.
type NIC struct {
	lib     *library
	o       *Options
	info    nic.Info
	caps    nic.Capabilities
	context uintptr
	pd      uintptr
	pdn     uint32
	eqn     uint32
	uars    []*uar
	shared  bool // the library has no other register page for this context
	next    int  // register page of the next queue
	reads   uint64
	// pageSize is that of the machine, in which the kernel registers memory of queues.
	pageSize int
}

// open opens a device's port.
func (p *Provider) open(info nic.Info, device uintptr) (*NIC, error) {
	n := &NIC{lib: p.lib, o: &p.o, info: info, pageSize: os.Getpagesize()}
	if err := n.start(device, p); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *NIC) start(device uintptr, p *Provider) (err error) {
	if n.context, err = p.openDevice(device); err != nil {
		return err
	}
	if n.pd, err = call(n.lib.allocPD, n.context); n.pd == 0 {
		return fmt.Errorf("protection domain: %w", err)
	}
	out := &dvPD{}
	objects := &dvObjects{pd: dvObject{in: n.pd, out: unsafe.Pointer(out)}}
	if err := status(n.lib.initObject, uintptr(unsafe.Pointer(objects)), objectPD); err != nil {
		return fmt.Errorf("number of the protection domain: %w", err)
	}
	n.pdn = out.number
	if err := status(n.lib.queryEQN, n.context, 0, uintptr(unsafe.Pointer(&n.eqn))); err != nil {
		return fmt.Errorf("number of the event queue: %w", err)
	}
	if err := n.capabilities(); err != nil {
		return err
	}
	if _, err := n.register(); err != nil {
		return err
	}
	n.caps.Register = uint64(n.uars[0].register) &^ (nic.RegisterBytes - 1)
	n.next = 0
	return nil
}

// capabilities asks the device what it can do.
func (n *NIC) capabilities() error {
	general, err := n.query(capsGeneral)
	if err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if get(general, capabilities, capRC) == 0 {
		return fmt.Errorf("%w: RC queue pairs", nic.ErrNotSupported)
	}
	atomics, err := n.query(capsAtomic)
	if err != nil {
		return fmt.Errorf("capabilities of atomics: %w", err)
	}
	operations, sizes := get(atomics, capabilities, capAtomicOperations), get(atomics, capabilities, capAtomicSizes)
	depth := min(get(general, capabilities, capLogMaxQPSize), get(general, capabilities, capLogMaxCQSize))
	n.reads = min(get(general, capabilities, capLogReadsOut), get(general, capabilities, capLogReadsIn),
		uint64(bits.Len(uint(max(1, n.o.Reads)))-1))
	n.caps = nic.Capabilities{
		MaxDepth:   uint32(min(1<<depth, layout.MaxDepth)),
		MaxMessage: 1 << min(get(general, capabilities, capLogMaxMessage), logMessageMax),
		Atomics8: get(general, capabilities, capAtomic) != 0 && operations&(atomicCompareSwap|atomicFetchAdd) == atomicCompareSwap|atomicFetchAdd &&
			sizes&(1<<3) != 0,
		MaskedAtomics: operations&(atomicMaskedSwap|atomicMaskedAdd) == atomicMaskedSwap|atomicMaskedAdd && sizes&(1<<2|1<<3) == 1<<2|1<<3,
		Collapsed:     get(general, capabilities, capOverrunIgnore) != 0,
		HostQueues:    true, DeviceQueues: true, // memory that cannot be registered says so then
	}
	return nil
}

// query asks for a set of capabilities.
func (n *NIC) query(set_ uint64) ([]byte, error) {
	in, out := make([]byte, queryIn), make([]byte, queryOut)
	set(in, 0, cmdOpcode, opQueryCapabilities)
	set(in, 0, cmdModifier, set_)
	return out, command(n.lib.generalCommand, n.context, in, out)
}

// command gives the device's firmware a command on an object of the library.
func command(function, object uintptr, in, out []byte) error {
	err := status(function, object, uintptr(unsafe.Pointer(&in[0])), uintptr(len(in)), uintptr(unsafe.Pointer(&out[0])), uintptr(len(out)))
	return refused(err, out)
}

// refused adds to an error what the device's firmware answered.
func refused(err error, out []byte) error {
	code, syndrome := get(out, 0, outStatus), get(out, 0, outSyndrome)
	switch {
	case err == nil && code == 0:
		return nil
	case err == nil:
		return fmt.Errorf("the device's firmware refuses: status %#x, syndrome %#x", code, syndrome)
	case code != 0:
		return fmt.Errorf("%w: the device's firmware refuses: status %#x, syndrome %#x", err, code, syndrome)
	}
	return err
}

// register is the register page for the next queue.
func (n *NIC) register() (*uar, error) {
	if len(n.uars) < maxRegisters && !n.shared {
		// Of pages that are not cached a context has one, which it gives again and again, unless they are dedicated;
		// older libraries and kernels have only the others.
		var page uintptr
		var err error
		for _, kind := range []uintptr{uarDedicated, uarNotCached, uarCombining} {
			if page, err = call(n.lib.allocUAR, n.context, kind); page != 0 {
				n.shared = kind == uarNotCached
				break
			}
		}
		switch {
		case page != 0:
			n.uars = append(n.uars, at[uar](page))
			return at[uar](page), nil
		case len(n.uars) == 0:
			return nil, fmt.Errorf("register page: %w", err)
		}
	}
	n.next = (n.next + 1) % len(n.uars)
	return n.uars[n.next], nil
}

// Info implements nic.NIC.
func (n *NIC) Info() nic.Info { return n.info }

// Capabilities implements nic.NIC.
func (n *NIC) Capabilities() nic.Capabilities { return n.caps }

// Close implements nic.NIC.
func (n *NIC) Close() error {
	for _, u := range n.uars {
		call(n.lib.freeUAR, uintptr(unsafe.Pointer(u)))
	}
	n.uars = nil
	return errors.Join(
		destroy("protection domain", n.lib.deallocPD, &n.pd),
		destroy("device", n.lib.closeDevice, &n.context))
}

// destroy gives an object back to the library, if it is there.
func destroy(what string, function uintptr, object *uintptr) error {
	if *object == 0 {
		return nil
	}
	err := status(function, *object)
	*object = 0
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// addressOf is where a buffer lies for the library.
func addressOf(b nic.Buffer) uintptr {
	if b.Host != nil {
		return uintptr(unsafe.Pointer(unsafe.SliceData(b.Host)))
	}
	return uintptr(b.Address)
}

// memory is registered memory.
type memory struct {
	lib *library
	mr  uintptr // of a memoryRegion
}

// Register implements nic.NIC: by a dma-buf if there is one, else by address, which for a GPU needs the module
// nvidia_peermem.
func (n *NIC) Register(b nic.Buffer, access nic.Access) (nic.Memory, error) {
	var errs []error
	if b.FD >= 0 && n.lib.regDMABuf != 0 {
		mr, err := call(n.lib.regDMABuf, n.pd, uintptr(b.Offset), uintptr(b.Bytes), uintptr(b.Address), uintptr(b.FD), uintptr(access))
		if mr != 0 {
			return &memory{n.lib, mr}, nil
		}
		errs = append(errs, fmt.Errorf("by dma-buf: %w", err))
	}
	var mr uintptr
	var err error
	if n.lib.regMRIOVA != 0 {
		mr, err = call(n.lib.regMRIOVA, n.pd, addressOf(b), uintptr(b.Bytes), uintptr(b.Address), uintptr(access))
	} else {
		mr, err = call(n.lib.regMR, n.pd, addressOf(b), uintptr(b.Bytes), uintptr(access&^nic.RelaxedOrdering))
	}
	if mr == 0 {
		return nil, fmt.Errorf("register %#x bytes at %#x with %s: %w", b.Bytes, b.Address, n.info.Name,
			errors.Join(append(errs, fmt.Errorf("by address: %w", err))...))
	}
	return &memory{n.lib, mr}, nil
}

func (m *memory) LocalKey() uint32  { return at[memoryRegion](m.mr).lkey }
func (m *memory) RemoteKey() uint32 { return at[memoryRegion](m.mr).rkey }
func (m *memory) Close() error      { return destroy("deregister memory", m.lib.deregMR, &m.mr) }

// queueMemory is memory for queues.
type queueMemory struct {
	lib   *library
	umem  uintptr // of a devxUMem
	bytes uint64
}

// RegisterQueues implements nic.NIC, in the same two ways as Register.
func (n *NIC) RegisterQueues(b nic.Buffer) (nic.QueueMemory, error) {
	var errs []error
	if b.FD >= 0 && n.lib.umemRegEx != 0 {
		in := &umemIn{address: uintptr(b.Offset), size: uintptr(b.Bytes), access: uint32(nic.LocalWrite), pageSizes: ^uint64(0xfff),
			mask: umemDMABuf, fd: int32(b.FD)}
		umem, err := call(n.lib.umemRegEx, n.context, uintptr(unsafe.Pointer(in)))
		if umem != 0 {
			return &queueMemory{n.lib, umem, b.Bytes}, nil
		}
		errs = append(errs, fmt.Errorf("by dma-buf: %w", err))
	}
	umem, err := call(n.lib.umemReg, n.context, addressOf(b), uintptr(b.Bytes), uintptr(nic.LocalWrite))
	if umem == 0 {
		return nil, fmt.Errorf("register %#x bytes at %#x for queues of %s: %w", b.Bytes, b.Address, n.info.Name,
			errors.Join(append(errs, fmt.Errorf("by address: %w", err))...))
	}
	return &queueMemory{n.lib, umem, b.Bytes}, nil
}

func (m *queueMemory) Close() error {
	return destroy("deregister memory of queues", m.lib.umemDereg, &m.umem)
}

// queue is a queue pair and its completion queue.
type queue struct {
	n      *NIC
	cq, qp uintptr // of the library's objects
	number uint32
	uar    *uar
}

// umemOf is the number of the memory that a position is in.
func umemOf(what string, p nic.Position, bytes uint64) (uint64, error) {
	m, ok := p.Memory.(*queueMemory)
	if !ok || m.umem == 0 || p.Offset+bytes < bytes || p.Offset+bytes > m.bytes {
		return 0, fmt.Errorf("%s: %#x bytes at offset %#x are not in registered memory", what, bytes, p.Offset)
	}
	return uint64(at[devxUMem](m.umem).id), nil
}

// CreateQueue implements nic.NIC.
func (n *NIC) CreateQueue(c nic.QueueConfig) (nic.Queue, error) {
	if c.Depth == 0 || c.Depth&(c.Depth-1) != 0 || c.Depth > n.caps.MaxDepth {
		return nil, fmt.Errorf("%d blocks: not a power of two up to %d", c.Depth, n.caps.MaxDepth)
	}
	q := &queue{n: n}
	if err := q.create(c); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

func (q *queue) create(c nic.QueueConfig) error {
	n := q.n
	size, log := uint64(c.Depth)*64, uint64(bits.TrailingZeros32(c.Depth))
	wq, err := umemOf("work queue", c.WQ, size)
	if err != nil {
		return err
	}
	cq, err := umemOf("completion queue", c.CQ, size)
	if err != nil {
		return err
	}
	record, err := umemOf("record", c.Record, nic.RecordBytes)
	if err != nil {
		return err
	}
	if q.uar, err = n.register(); err != nil {
		return err
	}

	in := make([]byte, createCQIn)
	set(in, 0, cmdOpcode, opCreateCQ)
	set(in, cqContext, cqcCollapsed, 1)
	set(in, cqContext, cqcIgnore, 1)
	set(in, cqContext, cqcLogSize, log)
	set(in, cqContext, cqcLogPage, logPage(n.pageSize))
	set(in, cqContext, cqcRegister, uint64(q.uar.page))
	set(in, cqContext, cqcEvents, uint64(n.eqn))
	set(in, cqContext, cqcRecordValid, 1)
	set(in, cqContext, cqcRecordMemory, record)
	set(in, cqContext, cqcRecord, c.Record.Offset+nic.RecordCQ)
	set(in, 0, createCQOffset, c.CQ.Offset)
	set(in, 0, createCQMemory, cq)
	set(in, 0, createCQValid, 1)
	var cqn uint32
	if q.cq, cqn, err = n.object("completion queue", in, outCQ); err != nil {
		return err
	}

	in = make([]byte, createQPIn)
	set(in, 0, cmdOpcode, opCreateQP)
	set(in, qpContext, qpcService, serviceRC)
	set(in, qpContext, qpcMigration, migrated)
	set(in, qpContext, qpcPD, uint64(n.pdn))
	set(in, qpContext, qpcRegister, uint64(q.uar.page))
	set(in, qpContext, qpcLogSendSize, log)
	set(in, qpContext, qpcReceiveType, receiveNone)
	set(in, qpContext, qpcSendCQ, uint64(cqn))
	set(in, qpContext, qpcReceiveCQ, uint64(cqn))
	set(in, qpContext, qpcRecordValid, 1)
	set(in, qpContext, qpcRecordMemory, record)
	set(in, qpContext, qpcRecord, c.Record.Offset)
	set(in, 0, createQPOffset, c.WQ.Offset)
	set(in, 0, createQPMemory, wq)
	set(in, 0, createQPValid, 1)
	q.qp, q.number, err = n.object("queue pair", in, outQP)
	return err
}

// object carries out a command that creates something, whose number is that field of the answer.
func (n *NIC) object(what string, in []byte, number field) (uintptr, uint32, error) {
	out := make([]byte, answer)
	object, err := call(n.lib.objCreate, n.context, uintptr(unsafe.Pointer(&in[0])), uintptr(len(in)), uintptr(unsafe.Pointer(&out[0])), uintptr(len(out)))
	if object == 0 {
		return 0, 0, fmt.Errorf("create %s: %w", what, refused(err, out))
	}
	return object, uint32(get(out, 0, number)), nil
}

// Number implements nic.Queue.
func (q *queue) Number() uint32 { return q.number }

// Register implements nic.Queue.
func (q *queue) Register() uint64 { return uint64(q.uar.register) }

// Ring implements nic.Queue.
func (q *queue) Ring(b [8]byte) {
	atomic.StoreUint64(at[uint64](q.uar.register), binary.NativeEndian.Uint64(b[:]))
}

// Endpoint implements nic.Queue.
func (q *queue) Endpoint() nic.Endpoint {
	i := &q.n.info
	return nic.Endpoint{Number: q.number, Link: i.Link, LID: i.LID, MTU: uint16(i.MTU), GID: i.GID}
}

// modify carries out a command that changes the queue pair's state.
func (q *queue) modify(what string, opcode uint64, fill func(in []byte)) error {
	in, out := make([]byte, modifyQPIn), make([]byte, answer)
	set(in, 0, cmdOpcode, opcode)
	set(in, 0, modifyQP, uint64(q.number))
	fill(in)
	if err := command(q.n.lib.objModify, q.qp, in, out); err != nil {
		return fmt.Errorf("queue pair %#x to %s: %w", q.number, what, err)
	}
	return nil
}

// Connect implements nic.Queue: reset to INIT, to ready to receive, to ready to send.
func (q *queue) Connect(_ context.Context, remote nic.Endpoint) error {
	n, o, local := q.n, q.n.o, &q.n.info
	if remote.Link != local.Link {
		return fmt.Errorf("connect %s to %s: %w", local.Link, remote.Link, nic.ErrNotSupported)
	}
	mtu := mtuCode(min(int(remote.MTU), local.MTU))
	if mtu == 0 {
		return fmt.Errorf("connect with an MTU of %d bytes: %w", remote.MTU, nic.ErrNotSupported)
	}
	var mac [6]byte
	if local.Link == nic.Ethernet {
		var err error
		if mac, err = n.resolve(remote.GID); err != nil {
			return fmt.Errorf("find the network address of GID %x: %w", remote.GID, err)
		}
	}
	path := qpContext + pathContext
	rights := func(in []byte) { // and the port, for INIT and RTR
		set(in, qpContext, qpcReads, 1)
		set(in, qpContext, qpcWrites, 1)
		set(in, qpContext, qpcAtomics, 1)
		set(in, qpContext, qpcAtomicMode, atomicMode8)
		set(in, path, pathPort, uint64(local.Port))
		set(in, path, pathPartition, uint64(o.PartitionKey))
	}
	err := q.modify("INIT", opReset2Init, func(in []byte) {
		set(in, qpContext, qpcMigration, migrated)
		rights(in)
	})
	if err != nil {
		return err
	}
	err = q.modify("RTR", opInit2RTR, func(in []byte) {
		set(in, 0, modifyOptional, optionalReads|optionalWrites|optionalAtomics)
		set(in, qpContext, qpcMTU, mtu)
		set(in, qpContext, qpcLogMessage, logMessageMax)
		set(in, qpContext, qpcRemote, uint64(remote.Number))
		set(in, qpContext, qpcLogReadsIn, n.reads)
		set(in, qpContext, qpcRNRTimer, rnrTimer)
		set(in, qpContext, qpcReceivePSN, 0)
		rights(in)
		q.setPath(in, &remote, mac)
	})
	if err != nil {
		return err
	}
	return q.modify("RTS", opRTR2RTS, func(in []byte) {
		set(in, qpContext, qpcLogReadsOut, n.reads)
		set(in, qpContext, qpcRetries, uint64(o.Retries))
		set(in, qpContext, qpcRNRRetries, rnrRetriesForAll)
		set(in, qpContext, qpcSendPSN, 0)
		set(in, path, pathAckTimeout, uint64(o.AckTimeout))
	})
}

// setPath fills the address path of a queue's context: the way to the other side.
func (q *queue) setPath(in []byte, remote *nic.Endpoint, mac [6]byte) {
	o, local := q.n.o, &q.n.info
	const path = qpContext + pathContext
	set(in, path, pathClass, uint64(o.TrafficClass))
	if local.Link == nic.InfiniBand {
		set(in, path, pathRemoteLID, uint64(remote.LID))
		set(in, path, pathService, uint64(o.ServiceLevel))
	} else {
		set(in, path, pathMAC0, uint64(binary.BigEndian.Uint16(mac[:])))
		set(in, path, pathMAC1, uint64(binary.BigEndian.Uint32(mac[2:])))
		set(in, path, pathEthPrio, uint64(o.ServiceLevel&7))
		set(in, path, pathDSCP, uint64(o.TrafficClass>>2))
		set(in, path, pathECN, uint64(o.TrafficClass&3))
		// Different queue pairs take different ways through the network.
		set(in, path, pathSourcePort, 0xc000|uint64((q.number^remote.Number)&0x3fff))
	}
	if local.Link == nic.Ethernet || remote.LID == 0 || subnet(remote.GID) != subnet(local.GID) {
		if local.Link == nic.InfiniBand { // packets of RoCE have a global header always, which the bit is not for
			set(in, path, pathGlobal, uint64(1))
		}
		set(in, path, pathSource, uint64(local.GIDIndex))
		set(in, path, pathHops, hopLimit)
		set(in, path, pathRemoteGID0, binary.BigEndian.Uint64(remote.GID[:8]))
		set(in, path, pathRemoteGID1, binary.BigEndian.Uint64(remote.GID[8:]))
	}
}

// logPage is how queues' contexts give the size of pages: its logarithm beyond 4 KiB.
func logPage(size int) uint64 { return uint64(bits.TrailingZeros(uint(size))) - 12 }

// hopLimit is that of packets with a global header.
const hopLimit = 64

// subnet is the prefix of an InfiniBand GID.
func subnet(gid [16]byte) uint64 { return binary.BigEndian.Uint64(gid[:8]) }

// mtuCode is the code of an MTU in bytes, 0 for one that does not exist.
func mtuCode(bytes int) uint64 {
	if bytes < 256 || bytes > 4096 || bytes&(bytes-1) != 0 {
		return 0
	}
	return uint64(bits.TrailingZeros(uint(bytes)) - 7)
}

// resolve finds the Ethernet address of a GID, as the kernel does for an address handle.
func (n *NIC) resolve(gid [16]byte) ([6]byte, error) {
	var mac [6]byte
	attr := &ahAttr{gid: gid, gidIndex: uint8(n.info.GIDIndex), hops: hopLimit, class: uint8(n.o.TrafficClass), sl: uint8(n.o.ServiceLevel),
		global: 1, port: uint8(n.info.Port)}
	ah, err := call(n.lib.createAH, n.pd, uintptr(unsafe.Pointer(attr)))
	if ah == 0 {
		return mac, fmt.Errorf("address handle: %w", err)
	}
	out := &dvAH{}
	objects := &dvObjects{ah: dvObject{in: ah, out: unsafe.Pointer(out)}}
	err = status(n.lib.initObject, uintptr(unsafe.Pointer(objects)), objectAH)
	if err == nil {
		mac = *at[[6]byte](out.vector + vectorMAC)
	}
	return mac, errors.Join(err, status(n.lib.destroyAH, ah))
}

// Close implements nic.Queue.
func (q *queue) Close() error {
	err := errors.Join(
		destroy("queue pair", q.n.lib.objDestroy, &q.qp),
		destroy("completion queue", q.n.lib.objDestroy, &q.cq))
	if err != nil {
		return fmt.Errorf("destroy queue %#x: %w", q.number, err)
	}
	return nil
}
