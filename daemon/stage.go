package daemon

import (
	"fmt"
	"slices"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/units"
	policy "github.com/lgpu/lgpu/policy/residence"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// What people are told of where memory is, and of why it is not where it should be.

// of returns what of so many bytes of an lgpu has left a device, why something is not where it should be, and whether
// its memory can leave devices at all.
func (r *residence) of(id uint64, uuid gpu.UUID, used uint64) (evicted uint64, why string, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lgpus[id]
	if l == nil {
		return 0, "", false
	}
	resident, away := uint64(0), l.suspended || l.evicted
	for _, s := range r.policy.Seats(id) {
		if s.Device == uuid {
			resident, away = resident+s.Resident, away || s.Away
		}
	}
	for _, of := range r.holders {
		for _, d := range of.devices {
			if of.id.LGPU == id && d.uuid == uuid && d.failure != "" {
				why = d.failure
			}
		}
	}
	if !away {
		return 0, why, true
	}
	if budget, unfit := r.unfit(id, uuid); unfit && why == "" {
		why = r.tooSmall(uuid, budget)
	}
	return used - min(resident, used), why, true
}

// stage is the state of an lgpu on a device, as its gates have it, with what its memory has to do with it.
func (r *residence) stage(id uint64, uuid gpu.UUID, state string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.policy.Memory(id) {
	case policy.Coming:
		return StateMoving
	case policy.Here:
		return state
	}
	_, unfit := r.unfit(id, uuid)
	switch {
	case state != StateIdle && state != StateWaiting: // its gate is not closed yet
		return state
	case unfit:
		return StateUnfit
	case r.policy.Next(id, uuid):
		return StateNext
	case state == StateWaiting || r.policy.Asks(id):
		return StateWaiting
	}
	return StateEvicted
}

// turnCounts returns what has been counted of turns, and how long they are.
func (r *residence) turnCounts() Turns {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := Turns{Stats: r.policy.Stats(), Length: map[gpu.UUID]time.Duration{}}
	for _, d := range r.daemon.inventory.present() {
		t.Length[d.UUID] = r.policy.Turn(d.UUID)
	}
	return t
}

// gone reports whether all that can be moved of a suspended lgpu has left a device. One that no program is in has none.
func (r *residence) gone(id uint64, uuid gpu.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lgpus[id]
	if l == nil {
		return true
	}
	return (l.suspended || l.evicted) && !slices.ContainsFunc(r.policy.Seats(id), func(s policy.Seat) bool {
		return s.Device == uuid && (!s.Linked || s.Level != 0 || !s.Since.IsZero() || s.Refused != 0)
	})
}

// fail reports that memory stays where it should not. Called by keep with mu held.
func (r *residence) fail(of *holding, device int, why string) {
	d := &of.devices[device]
	d.failure = why
	path := r.daemon.pathOf(of.id.LGPU)
	uuid := d.uuid
	r.daemon.journal.emit(Event{
		Kind: ResidenceFailed, Path: path, ID: of.id.LGPU, Device: &uuid, PID: of.peer.PID, UID: of.peer.UID,
		Text: fmt.Sprintf("memory of process %d (%s) of %s on device %s is not where it should be: %s", of.peer.PID,
			of.peer.Comm, path, r.daemon.inventory.short(uuid), why),
	})
}

// whyNot is why a client could not do what it was told, for people.
func whyNot(why uint64) string {
	switch why & (1<<protocol.WhyBits - 1) {
	case protocol.WhyBusy:
		return "its work does not end: a kernel runs, or a stream waits"
	case protocol.WhyCapture:
		return "a stream is being captured"
	case protocol.WhyFixed:
		return "it has memory that cannot leave the device"
	case protocol.WhyStore:
		return "there is no room for what is to leave the device"
	case protocol.WhyDriver:
		return fmt.Sprintf("the driver refused (CUDA error %d)", why>>protocol.WhyBits)
	}
	return fmt.Sprintf("the program says %d", why)
}

// tell makes events of lgpus whose memory is where it should be again. Called by keep with mu held.
func (r *residence) tell(devices []*device) {
	for id, l := range r.lgpus {
		r.tellUnfit(id, l, devices)
		if l.told == l.suspended || r.policy.Waiting(id) ||
			slices.ContainsFunc(r.policy.Seats(id), func(s policy.Seat) bool { return s.Refused != 0 || l.suspended && s.Level != 0 }) {
			continue
		}
		l.told = l.suspended
		path := r.daemon.pathOf(id)
		e := Event{Kind: LgpuResumed, Path: path, ID: id, Text: path + " was resumed: its memory is on its devices again"}
		if l.suspended {
			e.Kind, e.Text = LgpuSuspended, path+" was suspended: its memory has left its devices"
		}
		r.daemon.journal.emit(e)
		for _, of := range r.holders {
			for i := range of.devices {
				if of.id.LGPU == id {
					of.devices[i].failure = ""
				}
			}
		}
	}
}

// tellUnfit makes an event of an lgpu that cannot come back any more. Called by keep with mu held.
func (r *residence) tellUnfit(id uint64, l *managed, devices []*device) {
	for _, d := range devices {
		budget, unfit := r.unfit(id, d.UUID)
		if unfit && !l.unfit[d.UUID] {
			path := r.daemon.pathOf(id)
			r.daemon.journal.emit(Event{
				Kind: ResidenceFailed, Path: path, ID: id, Device: &d.UUID,
				Text: fmt.Sprintf("%s cannot come back to device %s: %s", path, d.Short(), r.tooSmall(d.UUID, budget)),
			})
		}
		l.unfit[d.UUID] = unfit
	}
}

// refuse makes an event of memory that will never be given to a client. Called by keep with mu held.
func (r *residence) refuse(of *holding, uuid gpu.UUID) {
	path := r.daemon.pathOf(of.id.LGPU)
	r.daemon.journal.emit(Event{
		Kind: ResidenceFailed, Path: path, ID: of.id.LGPU, Device: &uuid, PID: of.peer.PID, UID: of.peer.UID,
		Text: fmt.Sprintf("process %d (%s) of %s was refused memory of device %s: with what other lgpus keep there it would be more "+
			"than memory.budget", of.peer.PID, of.peer.Comm, path, r.daemon.inventory.short(uuid)),
	})
}

// keepOut makes an event of a client whose context would leave too little for an lgpu. Called by keep with mu held.
func (r *residence) keepOut(of *holding, uuid gpu.UUID, unfit, budget uint64) {
	path, why := r.daemon.pathOf(of.id.LGPU), "which has no room for it"
	if unfit != of.id.LGPU {
		why = "with which " + r.daemon.pathOf(unfit) + " could not come back there any more"
	}
	r.daemon.journal.emit(Event{
		Kind: ResidenceFailed, Path: path, ID: of.id.LGPU, Device: &uuid, PID: of.peer.PID, UID: of.peer.UID,
		Text: fmt.Sprintf("process %d (%s) of %s was refused a context on device %s, %s: %s",
			of.peer.PID, of.peer.Comm, path, r.daemon.inventory.short(uuid), why, r.tooSmall(uuid, budget)),
	})
}

// unfit reports whether an lgpu whose memory is away cannot come back to a device, and the budget with which it could.
// Called with mu held.
func (r *residence) unfit(id uint64, uuid gpu.UUID) (budget uint64, is bool) {
	if r.policy.Memory(id) != policy.Away {
		return 0, false
	}
	return r.policy.Unfit(id, uuid)
}

// tooSmall says that a device's budget is, for people.
func (r *residence) tooSmall(uuid gpu.UUID, needed uint64) string {
	d := r.daemon.inventory.device(uuid)
	if d == nil {
		return "the device is gone"
	}
	return fmt.Sprintf("memory.budget of the device is %s, and with what other lgpus keep there %s would be needed",
		units.FormatSize(r.daemon.tree.Budget(d.Identity())), units.FormatSize(needed))
}
