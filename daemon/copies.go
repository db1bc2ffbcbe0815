package daemon

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/hostcopy"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// How much a client's files grow at once, in bytes: it registers one step while the next is made.
const (
	growStep  = 1 << 30
	leastStep = 64 << 20 // of memory, where there is little
)

// size is how much there is room for in all files.
func (d *held) size() (sum uint64) {
	for _, n := range d.sizes {
		sum += n
	}
	return sum
}

// grow has a client's files become as large as they are wanted, in the background. Called by keep with mu held.
func (r *residence) grow(of *holding, device int) {
	d := &of.devices[device]
	if l := r.lgpus[of.id.LGPU]; d.growing || d.wanted <= d.size() || l != nil && l.frozen {
		return
	}
	for tier := range d.files {
		if d.files[tier] == nil {
			d.files[tier] = r.copy(d.uuid, hostcopy.Tier(tier))
		}
	}
	d.growing = true
	pace, step := hostcopy.Ahead, uint64(growStep)
	if d.urgent {
		pace = hostcopy.Urgent
	}
	files, sizes, rest := d.files, d.sizes, d.wanted-d.size()
	r.daemon.work.Go(func() {
		tier := hostcopy.Memory
		g, err := files[tier].Grow(sizes[tier]+min(rest, step), pace)
		for ; errors.Is(err, hostcopy.ErrRoom) && step > leastStep; step /= 2 {
			g, err = files[tier].Grow(sizes[tier]+min(rest, step/2), pace)
		}
		if errors.Is(err, hostcopy.ErrRoom) {
			full := err
			tier = hostcopy.Disk
			if g, err = files[tier].Grow(sizes[tier]+rest, pace); err != nil {
				err = fmt.Errorf("%w; %w", full, err)
			}
		}
		r.post(func(time.Time) { r.grown(of, device, tier, g, err) })
	})
}

// grown tells a client of a larger file. Called by keep with mu held.
func (r *residence) grown(of *holding, device int, tier hostcopy.Tier, g hostcopy.Grown, err error) {
	d := &of.devices[device]
	d.growing = false
	switch {
	case r.holders[of.holder] == nil:
		return
	case err != nil:
		d.wanted, d.urgent = d.size(), false // tried again with the next order
		r.fail(of, device, err.Error())
		return
	}
	d.sizes[tier] = g.Size
	if store := (region.Inode{Device: g.Device, Number: g.Inode}); store != d.noted.Stores[tier] {
		now := d.noted
		now.Stores[tier] = store
		r.note(of, device, now)
	}
	of.send(device, tier, g)
	if r.grow(of, device); !d.growing {
		d.urgent = false
		r.policy.Retry(of.id, d.uuid)
	}
}

// send tells a client of a file.
func (of *holding) send(device int, tier hostcopy.Tier, g hostcopy.Grown) {
	m := protocol.Message{Kind: protocol.Store, Value: g.Size}
	if tier == hostcopy.Memory {
		m.Flags = protocol.FlagPinned
	}
	if g.New {
		of.Send(device, m, g.FD)
		return
	}
	of.Send(device, m)
}

// adopt takes over a file that a client has brought back. Called by keep with mu held.
func (r *residence) adopt(of *holding, device int, file *os.File) {
	d := &of.devices[device]
	if file == nil || d.has(file) {
		return
	}
	var tier hostcopy.Tier
	var c *hostcopy.Copy
	var err error
	for tier = range hostcopy.Tiers {
		if d.files[tier] != nil {
			continue
		}
		noted := d.noted.Stores[tier]
		c = r.copy(d.uuid, tier)
		if err = c.Adopt(int(file.Fd()), hostcopy.Identity{Device: noted.Device, Inode: noted.Number}, r.most(d.uuid)); err == nil {
			break
		}
	}
	if c == nil {
		return // all are known
	}
	if err != nil {
		r.daemon.log.Warn("a client has brought a file that is not its own", "pid", of.peer.PID, "error", err)
		return
	}
	g, err := c.Grow(0, hostcopy.Ahead)
	if err != nil {
		c.Close()
		r.daemon.log.Warn("the file of a client cannot be used", "pid", of.peer.PID, "error", err)
		return
	}
	d.files[tier], d.sizes[tier] = c, g.Size
}

// has reports whether a file is one of those that are known already.
func (d *held) has(file *os.File) bool {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return false
	}
	for tier, c := range d.files {
		if c != nil && d.noted.Stores[tier] == (region.Inode{Device: stat.Dev, Number: stat.Ino}) {
			return true
		}
	}
	return false
}

// welcome sends a client that has come back its files again: they may have been lost with the connection. Called by keep
// with mu held.
func (r *residence) welcome(of *holding, device int) {
	d := &of.devices[device]
	for tier, c := range d.files {
		if c == nil || d.sizes[tier] == 0 || d.growing {
			continue
		}
		if g, err := c.Grow(0, hostcopy.Ahead); err == nil {
			g.New = true
			of.send(device, hostcopy.Tier(tier), g)
		}
	}
}

// copy is a file for memory of a device.
func (r *residence) copy(uuid gpu.UUID, tier hostcopy.Tier) *hostcopy.Copy {
	node := -1
	if d := r.daemon.inventory.device(uuid); d != nil {
		node = nodeOf(d.PCI)
	}
	return r.keeper.Copy(tier, node)
}
