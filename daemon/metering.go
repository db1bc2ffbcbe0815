package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/gpu"
)

// Times of metering.
const (
	meterPeriod = 10 * time.Millisecond  // between two readings, while lgpus share the device
	meterSlow   = 100 * time.Millisecond // likewise, while none of them has work
	meterRest   = time.Second            // without sharing, after which the meter is closed
	meterRetry  = time.Minute            // until what did not work is tried again
)

// Why time slices are of no use on a device.
var (
	errNotSet   = errors.New("the driver refuses or ignores the time slices that are set for programs")
	errNoEffect = errors.New("time slices have no effect there")
)

// metering tells the gates of one device whose work its hardware runs, and says whether lgpus can be guests there: that
// takes a meter, and hardware that gives way at the end of a time slice. The latter shows in what is metered as soon as
// programs use the device together. A goroutine of its own reads the meter, since a driver may hang.
type metering struct {
	daemon *Daemon
	device *device
	shared chan struct{} // holds a message when the device may be shared
	retry  time.Duration // until what did not work is tried again
	turns  []gpu.Turn    // of the goroutine, as the next one
	failed error         // why it was given up last
}

// tryMeter says why a device has no meter; empty: it has one.
func (v *inventory) tryMeter(o *origin, d gpu.Device) string {
	if v.daemon.config.NoGuests || d.Partitioned {
		return ""
	}
	meter, err := o.meter(d.UUID)
	if err == nil {
		err = meter.Close()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// meterLocked begins to meter the devices that have no goroutine for that yet, and ends it for those that are gone.
// Called with mu held.
func (v *inventory) meterLocked() {
	if v.watching == nil || v.watching.Err() != nil || v.daemon.config.NoGuests {
		return
	}
	for _, d := range v.metered {
		if !slices.Contains(v.all, d) {
			d.unmeter()
		}
	}
	v.metered = slices.DeleteFunc(v.metered, func(d *device) bool { return !slices.Contains(v.all, d) })
	for _, d := range v.all {
		if d.unmeter != nil || d.Partitioned || d.MIG() {
			continue
		}
		ctx, stop := context.WithCancel(v.watching)
		d.unmeter = stop
		v.metered = append(v.metered, d)
		v.daemon.work.Add(1)
		go func() {
			defer v.daemon.work.Done()
			defer stop()
			d.metering.run(ctx)
		}()
	}
}

// setNoGuests notes why lgpus cannot be guests on a device, and reports whether that is news.
func (v *inventory) setNoGuests(d *device, why string) bool {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	news := d.noGuests != why
	d.noGuests = why
	return news
}

func (v *inventory) whyNoGuests(d *device) string {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	return d.noGuests
}

// share notes that several lgpus are on a device. Called with the gates' lock held.
func (v *inventory) share(uuid gpu.UUID) {
	for _, d := range v.present() {
		if d.UUID == uuid {
			select {
			case d.metering.shared <- struct{}{}:
			default: // it knows already
			}
		}
	}
}

// run meters the device until ctx ends.
func (m *metering) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.meter(ctx)
		if ctx.Err() != nil {
			return
		}
		m.say(err.Error())
		if !m.failedBefore(err) {
			m.daemon.log.Info("lgpus take turns there", "device", m.device.Short(), "why", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(m.retry):
		}
	}
}

// failedBefore reports whether an error is the same as the one before it: the figures in it may differ.
func (m *metering) failedBefore(err error) bool {
	last := m.failed
	m.failed = err
	return last != nil && (err.Error() == last.Error() || errors.Is(err, errNoEffect) && errors.Is(last, errNoEffect))
}

// say makes known why lgpus cannot be guests; empty: they can.
func (m *metering) say(why string) {
	if !m.daemon.inventory.setNoGuests(m.device, why) {
		return
	}
	if err := m.daemon.inventory.publish(); err != nil {
		m.daemon.log.Warn("a device changes how lgpus share it", "device", m.device.Short(), "error", err)
	}
}

// meter reads the meter whenever lgpus share the device, until it cannot be read, or time slices have no effect.
func (m *metering) meter(ctx context.Context) error {
	for {
		meter, err := m.device.origin.meter(m.device.UUID)
		if err != nil {
			return err
		}
		m.say("")
		if m.daemon.gates.Shared(m.device.UUID) {
			err = m.read(ctx, meter)
		}
		if err = errors.Join(err, meter.Close()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.shared:
		}
	}
}

// read passes on what the meter says, until the device has not been shared for a while.
func (m *metering) read(ctx context.Context, meter gpu.Meter) error {
	m.daemon.gates.Metered(m.device.UUID)
	tick := time.NewTicker(meterPeriod)
	defer tick.Stop()
	active, slow := time.Now(), false
	for last := time.Now(); time.Since(last) < meterRest; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		var err error
		if m.turns, err = meter.Turns(m.turns[:0]); err != nil {
			return fmt.Errorf("read whose work the device runs: %w", err)
		}
		v := m.daemon.gates.Ran(m.device.UUID, m.turns)
		if v.Works {
			m.failed = nil // what comes next is news
		}
		if v.Active {
			active = time.Now()
		}
		if rests := time.Since(active) > meterRest; rests != slow {
			if slow = rests; slow {
				tick.Reset(meterSlow)
			} else {
				tick.Reset(meterPeriod)
			}
		}
		switch {
		case v.Refused:
			return errNotSet
		case v.Known && !v.Works:
			return fmt.Errorf("%w: with one of %v, programs kept the device for %v while others had work", errNoEffect, v.Slice,
				v.Turn.Round(10*time.Microsecond))
		}
		if m.daemon.gates.Shared(m.device.UUID) {
			last = time.Now()
		}
	}
	return nil
}

// noGuests says why no lgpu is a guest beside the one that has a device; "" if they are.
func (n *Daemon) noGuests(d *device) string {
	switch {
	case n.modes.Mode(d.UUID) == mps.Spatial:
		return "lgpus run at the same time, each on its units"
	case n.config.NoGuests:
		return "the daemon runs with --guests off"
	default:
		return n.inventory.whyNoGuests(d)
	}
}
