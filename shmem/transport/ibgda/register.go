package ibgda

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// Register implements transport.Transport.
func (t *Transport) Register(c transport.Chunk) ([]byte, error) {
	entry := uint64(1) << t.c.KeyShift
	// The last entry may be a part: its key ends where the piece does. It is this piece's alone, since pieces begin
	// with an entry.
	if c.Index < 0 || c.Offset != uint64(c.Index)<<t.c.KeyShift || c.Bytes == 0 || c.Offset+c.Bytes < c.Offset ||
		c.Offset+c.Bytes > t.tables.entries<<t.c.KeyShift {
		return nil, fmt.Errorf("ibgda: register piece %d of %#x bytes at offset %#x: it does not begin with that entry of the key "+
			"table, or ends after the table's %d entries of %#x bytes", c.Index, c.Bytes, c.Offset, t.tables.entries, entry)
	}
	for _, p := range t.pieces {
		if c.Offset < p.Offset+p.Bytes && p.Offset < c.Offset+c.Bytes {
			return nil, fmt.Errorf("ibgda: register piece %d at offset %#x: piece %d is there", c.Index, c.Offset, p.Index)
		}
	}
	b := nic.Buffer{Address: c.Address, Bytes: c.Bytes}
	if c.Kind == transport.Host {
		b.Host = hostBytes(c.Address, c.Bytes)
	}
	memory, err := t.registerAll(b, t.c.access())
	if err != nil {
		return nil, fmt.Errorf("ibgda: register piece %d of %#x bytes at %#x: %w", c.Index, c.Bytes, c.Address, err)
	}
	t.pieces[c.Index] = &piece{Chunk: c, memory: memory}
	o := offer{Offset: c.Offset, Bytes: c.Bytes}
	for _, m := range memory {
		o.Keys = append(o.Keys, m.RemoteKey())
	}
	return o.append(nil), nil
}

// registerAll registers memory with every NIC, or with none.
func (t *Transport) registerAll(b nic.Buffer, access nic.Access) (memory []nic.Memory, err error) {
	err = t.exported(b, func(b nic.Buffer) error {
		for _, n := range t.nics {
			m, err := n.Register(b, access)
			if err != nil {
				return fmt.Errorf("%s: %w", n.Info().Name, err)
			}
			memory = append(memory, m)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, closeAll(memory))
	}
	return memory, nil
}

func closeAll[T interface{ Close() error }](list []T) error {
	var errs []error
	for _, x := range slices.Backward(list) {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}

// Attach implements transport.Transport.
func (t *Transport) Attach(index int, from [][]byte) error {
	p := t.pieces[index]
	if p == nil || p.attached || len(from) != t.c.PEs {
		return fmt.Errorf("ibgda: attach piece %d of %d PEs: not registered, or attached", index, len(from))
	}
	keys := make([][]uint32, t.c.PEs)
	for pe := range t.c.PEs {
		if t.used[pe] == 0 {
			continue
		}
		o, err := parseOffer(from[pe])
		if err == nil && (o.Offset != p.Offset || o.Bytes != p.Bytes || len(o.Keys) != len(t.nics)) {
			err = fmt.Errorf("%w: %#x bytes at %#x on %d NICs, expected %#x at %#x on %d", transport.ErrBlob, o.Bytes, o.Offset, len(o.Keys),
				p.Bytes, p.Offset, len(t.nics))
		}
		if err != nil {
			return fmt.Errorf("ibgda: piece %d of PE %d: %w", index, pe, err)
		}
		keys[pe] = o.Keys
	}
	err := t.give(p, keys)
	if err == nil {
		err = t.tables.set(p.Offset, p.Bytes, p.memory, keys)
	}
	if err != nil {
		remote := p.remote
		p.remote = nil
		return errors.Join(fmt.Errorf("ibgda: keys of piece %d: %w", index, err), t.tables.clear(p.Offset, p.Bytes), closeAll(remote))
	}
	p.attached = true
	return nil
}

// give tells NICs that want to know it what the other PEs registered.
func (t *Transport) give(p *piece, keys [][]uint32) error {
	for d, n := range t.nics {
		m, ok := n.NIC.(nic.Mapper)
		if !ok {
			continue
		}
		for pe, k := range keys {
			if len(k) == 0 || pe == t.c.PE {
				continue
			}
			mapped := uint64(0)
			if t.c.Peer != nil {
				mapped = t.c.Peer(pe)
			}
			if mapped == 0 {
				return fmt.Errorf("the memory of PE %d is not mapped here, which LSHMEM_NIC=%s needs: %w", pe, t.provider.Name(), nic.ErrNotSupported)
			}
			r := nic.Remote{Peer: pe, Key: k[d], Start: t.bases[pe] + p.Offset, Bytes: p.Bytes, Mapped: mapped + p.Offset}
			if err := m.SetRemote(r); err != nil {
				return fmt.Errorf("PE %d: %w", pe, err)
			}
			p.remote = append(p.remote, given{m, pe, k[d]})
		}
	}
	return nil
}

// Detach implements transport.Transport. A piece that Register refused, or that is detached already, is nothing.
func (t *Transport) Detach(index int) error {
	p := t.pieces[index]
	if p == nil {
		return nil
	}
	delete(t.pieces, index)
	var err error
	if p.attached {
		err = t.tables.clear(p.Offset, p.Bytes)
	}
	if err = errors.Join(err, closeAll(p.remote), closeAll(p.memory)); err != nil {
		return fmt.Errorf("ibgda: detach piece %d: %w", index, err)
	}
	return nil
}

// RegisterLocal implements transport.LocalRegistrar.
func (t *Transport) RegisterLocal(address, bytes uint64) (uint32, error) {
	end, carry := bits.Add64(address, bytes, 0)
	if bytes == 0 || carry != 0 || t.tables.entries == 0 {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: not a buffer", bytes, address)
	}
	taken := make([]bool, maxLocals)
	for start, l := range t.locals {
		taken[l.index] = true
		if e := t.tables.locals[l.index].End; address < e && start < end {
			return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %#x to %#x is registered", bytes, address, start, e)
		}
	}
	index := slices.Index(taken, false)
	if index < 0 {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %d buffers are registered, the most there can be", bytes, address, maxLocals)
	}
	buffer, err := t.c.Platform.Export(address, bytes)
	if err != nil {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %w", bytes, address, err)
	}
	if buffer.FD >= 0 {
		closeFD(buffer.FD) // registerAll makes another
	}
	memory, err := t.registerAll(buffer, nic.LocalWrite)
	if err != nil {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %w", bytes, address, err)
	}
	entry := layout.Local{Start: address, End: end}
	for d, m := range memory {
		entry.Keys[d] = networkOrder(m.LocalKey())
	}
	if err := t.tables.setLocal(index, entry); err != nil {
		return 0, errors.Join(fmt.Errorf("ibgda: register %d bytes at %#x: %w", bytes, address, err), closeAll(memory))
	}
	t.locals[address] = &local{index: index, memory: memory}
	return t.tables.localCount, nil
}

// UnregisterLocal implements transport.LocalRegistrar. Operations on the buffer must be complete.
func (t *Transport) UnregisterLocal(address uint64) error {
	l := t.locals[address]
	if l == nil {
		return fmt.Errorf("ibgda: no buffer is registered at %#x", address)
	}
	delete(t.locals, address)
	if err := errors.Join(t.tables.setLocal(l.index, layout.Local{}), closeAll(l.memory)); err != nil {
		return fmt.Errorf("ibgda: unregister the buffer at %#x: %w", address, err)
	}
	return nil
}
