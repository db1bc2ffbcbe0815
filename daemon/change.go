package daemon

import (
	"errors"
	"fmt"
	"time"

	"github.com/lgpu/lgpu/daemon/lifecycle"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/policy/limits"
)

// change is one event in the life of an lgpu, while it is carried out. Its methods are called with lgpus.life held.
type change struct {
	daemon *Daemon
	l      *lgpu

	launcher    *launcher         // whom the event is about; after Attach, who is attached
	environment map[string]string // what Attach found that programs need
	wait        time.Duration     // how long StartTimer has somebody expected
	before      store.Lgpu        // the record that Revert brings back
	fresh       bool              // there was no record before
}

var _ lifecycle.Carrier = (*change)(nil)

// drive tells the lgpu of an event and carries out what follows.
func (c *change) drive(e lifecycle.Event) error {
	err := lifecycle.Drive(c.l.machine, e, c)
	if !c.l.machine.State.InUse() {
		c.daemon.presence.used()
	}
	return err
}

// activate is drive for an event that activates an lgpu, whose record it changes before. After an error the record is
// as it was, and one that was new is forgotten. With success the lgpu takes over *sim, where it has none.
func (c *change) activate(e lifecycle.Event, sim **simUse, set func(*store.Lgpu)) error {
	g := c.daemon.lgpus
	g.mu.Lock()
	c.before = c.l.record
	_, known := g.byID[c.l.record.ID]
	c.fresh = !known
	g.byID[c.l.record.ID] = c.l
	set(&c.l.record)
	g.mu.Unlock()
	if err := c.drive(e); err != nil {
		return err
	}
	if c.l.sim == nil {
		c.l.sim, *sim = *sim, nil
	}
	c.daemon.containers.notice() // of its devices
	return nil
}

// Facts implements lifecycle.Carrier.
func (c *change) Facts() lifecycle.Facts {
	c.daemon.lgpus.mu.Lock()
	f := lifecycle.Facts{Launchers: len(c.l.launchers)}
	if c.l.launchers[c.launcher] {
		f.Launchers--
	}
	c.daemon.lgpus.mu.Unlock()
	dir, exists := c.daemon.tree.ByID(c.l.record.ID)
	f.Temporary = !exists || dir.Temporary
	return f
}

// Become implements lifecycle.Carrier.
func (c *change) Become(m lifecycle.Machine) {
	c.daemon.lgpus.mu.Lock()
	defer c.daemon.lgpus.mu.Unlock()
	c.l.machine = m
}

// Carry implements lifecycle.Carrier.
func (c *change) Carry(f lifecycle.Effect, next lifecycle.Machine) (err error) {
	g := c.daemon.lgpus
	switch f {
	case lifecycle.Admit:
		return c.admit(next)
	case lifecycle.Withdraw:
		return c.withdraw(next)
	case lifecycle.ClaimDevices:
		err = c.claim()
	case lifecycle.ReleaseDevices:
		c.release()
	case lifecycle.EnterDirectory:
		err = c.at(func(dir limits.Directory) error { return c.daemon.tree.Enter(dir.Path) })
	case lifecycle.LeaveDirectory:
		c.at(func(dir limits.Directory) error { c.daemon.tree.Leave(dir.Path); return nil })
	case lifecycle.RemoveDirectory:
		err = c.removeDirectory()
	case lifecycle.Attach:
		err = c.attach()
	case lifecycle.Detach:
		g.mu.Lock()
		delete(c.l.launchers, c.launcher)
		g.mu.Unlock()
	case lifecycle.Save:
		err = g.save(c.l)
	case lifecycle.Revert:
		err = c.revert()
	case lifecycle.StartTimer:
		c.startTimer()
	case lifecycle.StopTimer:
		c.stopTimer()
	case lifecycle.Forget:
		err = g.forget(c.l)
	default:
		err = fmt.Errorf("effect %s: %w", f, errors.ErrUnsupported)
	}
	if err == nil {
		c.Become(next)
	}
	return err
}

// at does something with the lgpu's directory.
func (c *change) at(do func(limits.Directory) error) error {
	dir, exists := c.daemon.tree.ByID(c.l.record.ID)
	if !exists {
		return fmt.Errorf("lgpu with id %d: %w", c.l.record.ID, ErrNotFound)
	}
	return do(dir)
}

// removeDirectory removes the lgpu's directory, unless somebody has done so.
func (c *change) removeDirectory() error {
	dir, exists := c.daemon.tree.ByID(c.l.record.ID)
	if !exists {
		return nil
	}
	if err := c.daemon.tree.Rmdir(dir.Path); err != nil {
		return fmt.Errorf("remove lgpu %s: %w", dir.Path, err)
	}
	return nil
}

// claim claims the devices, and keeps them in the mode that the lgpu needs. The error is errAgain if one has changed its mode.
func (c *change) claim() (err error) {
	// One that is revived goes on in the mode that there is.
	c.l.releases, err = c.daemon.inventory.claimFor(c.l.record, c.l.machine.Cause == lifecycle.Revived)
	return err
}

func (c *change) release() {
	c.l.releases.release()
	c.l.releases = nil
}

// admit makes the lgpu known to tenants. What the tree says is read under the lock that its changes come through, so
// that none is missed.
func (c *change) admit(next lifecycle.Machine) error {
	c.daemon.pushing.Lock()
	defer c.daemon.pushing.Unlock()
	before := c.l.machine
	c.Become(next) // its groups' budgets count it
	err := c.at(func(dir limits.Directory) error {
		c.daemon.pushDirectory(dir)
		if err := c.daemon.pushBudgets(); err != nil {
			return err
		}
		c.daemon.residence.read(dir)
		c.daemon.bounds.set(dir)
		return c.daemon.tenants.AddLGPU(c.daemon.lgpus.tenant(dir, c.l.record.Devices))
	})
	if err != nil {
		c.Become(before)
		c.withoutBudgets()
		c.daemon.bounds.forget(c.l.record.ID)
	}
	return err
}

// withdraw takes the lgpu from tenants, unless it has clients. What it used is counted from then on as used before.
func (c *change) withdraw(next lifecycle.Machine) error {
	id := c.l.record.ID
	c.leaving(true) // a process that comes meanwhile waits for the end of this
	defer c.leaving(false)
	used, unknown := c.daemon.tenants.Usage(id)
	err := c.daemon.tenants.RemoveLGPU(id)
	switch {
	case errors.Is(err, tenant.ErrInUse):
		return lifecycle.ErrKept
	case err != nil && !errors.Is(err, tenant.ErrUnknown):
		return err
	}
	c.daemon.residence.forget(id)
	g := c.daemon.lgpus
	g.mu.Lock()
	c.l.machine = next
	if unknown == nil {
		c.l.addUse(used)
	}
	g.mu.Unlock()
	c.daemon.pushing.Lock()
	defer c.daemon.pushing.Unlock()
	c.daemon.bounds.forget(id)
	c.withoutBudgets()
	return nil
}

// leaving notes whether the lgpu is being taken from tenants.
func (c *change) leaving(is bool) {
	c.daemon.lgpus.mu.Lock()
	defer c.daemon.lgpus.mu.Unlock()
	c.l.leaving = is
}

// withoutBudgets takes back the budgets of groups that were for this lgpu alone. Called with pushing held.
func (c *change) withoutBudgets() {
	if err := c.daemon.pushBudgets(); err != nil {
		c.daemon.log.Error("budgets of groups are not what they should be", "error", err)
	}
}

// attach makes the launcher one of the lgpu's, or finds it among those that it had before a restart.
func (c *change) attach() error {
	return c.at(func(dir limits.Directory) error {
		environment, err := c.daemon.environment(c.l.record, dir)
		if err != nil {
			return err
		}
		if err := c.daemon.bounds.join(dir.ID, c.launcher); err != nil {
			return err
		}
		g := c.daemon.lgpus
		g.mu.Lock()
		defer g.mu.Unlock()
		for other := range c.l.launchers {
			if other.Process == c.launcher.Process && !other.present {
				other.present = true // it is back after a restart
				c.launcher = other
			}
		}
		c.l.launchers[c.launcher] = true
		c.environment = environment
		return nil
	})
}

// revert brings the record back that was before an activation, or forgets one that was new.
func (c *change) revert() error {
	g := c.daemon.lgpus
	if c.fresh {
		return g.forget(c.l)
	}
	g.mu.Lock()
	c.l.record = c.before
	g.mu.Unlock()
	return g.save(c.l)
}

func (c *change) startTimer() {
	g, id := c.daemon.lgpus, c.l.record.ID
	g.mu.Lock()
	c.l.until = time.Now().Add(c.wait)
	g.mu.Unlock()
	c.l.timer = time.AfterFunc(c.wait+time.Millisecond, func() { g.notice(id) })
}

func (c *change) stopTimer() {
	g := c.daemon.lgpus
	g.mu.Lock()
	c.l.until = time.Time{}
	g.mu.Unlock()
	if c.l.timer != nil {
		c.l.timer.Stop()
		c.l.timer = nil
	}
}
