package daemon

import (
	"slices"
	"time"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/policy/schedule"
)

// deviceTime is what is known of an lgpu's time on a device over the last second. Where it is not measured, asked and
// delivered mean nothing.
type deviceTime struct {
	asked, delivered uint32 // hundredths of a percent
	measured         bool
	state            string
}

// sample is what the driver said of a device, and when.
type sample struct {
	gpu.Facts
	at time.Time
}

// The driver's figures are those of the last second before a sample. One that is older than stale says nothing of now.
const (
	sampleSpan = time.Second
	stale      = 3 * time.Second
)

// timeOf is the time of an lgpu with some clients on a device. The policy keeps accounts but for two: who has the device
// for itself without a cap, whose launches cost nothing, and who has it in spatial mode. Of the first the driver's sample
// says how busy it is, where that can be told apart; it is given all that it asks for. Of the second nobody knows.
func timeOf(s dispatch.Share, spatial bool, clients []tenant.Client, look sample, now time.Time) deviceTime {
	switch {
	case spatial && len(clients) > 0:
		return deviceTime{state: StateRunning}
	case !s.Free:
		return deviceTime{asked: s.Asked, delivered: s.Delivered, measured: true, state: stateOf(s.State)}
	}
	busy, known := look.busy(clients, now)
	switch {
	case !known:
		return deviceTime{state: StateRunning}
	case busy == 0:
		return deviceTime{measured: true, state: StateIdle}
	}
	return deviceTime{asked: busy, delivered: busy, measured: true, state: StateRunning}
}

// busy is the part of the time in which kernels of clients ran, in hundredths of a percent, as far as that is known.
func (s sample) busy(clients []tenant.Client, now time.Time) (uint32, bool) {
	if s.Namespaced || now.Sub(s.at) > stale { // the numbers of processes may be those of others
		return 0, false
	}
	for _, c := range clients {
		if s.at.Before(c.Joined.Add(sampleSpan)) {
			return 0, false
		}
	}
	alone, sum := true, 0
	for _, p := range s.Processes {
		switch {
		case !slices.ContainsFunc(clients, func(c tenant.Client) bool { return c.Peer.PID == p.PID }):
			alone = false
		case p.Utilisation < 0 || sum < 0:
			sum = -1
		default:
			sum += p.Utilisation
		}
	}
	if alone && s.Utilisation >= 0 {
		sum = s.Utilisation
	}
	return uint32(min(max(sum, 0), 100)) * (units.Whole / 100), sum >= 0
}

// timeOn is the time of the lgpu with an ID on a device.
func (n *Node) timeOn(id uint64, uuid gpu.UUID, s dispatch.Share, clients []tenant.Client) deviceTime {
	spatial := n.modes.Mode(uuid) == mps.Spatial
	if !s.Free && !spatial {
		return timeOf(s, false, nil, sample{}, time.Time{})
	}
	var mine []tenant.Client
	for _, c := range clients {
		if c.LGPU == id {
			mine = append(mine, c)
		}
	}
	var look sample
	if d := n.deviceOf(uuid); d != nil {
		n.mu.Lock()
		look = sample{d.facts, d.sampled}
		n.mu.Unlock()
	}
	return timeOf(s, spatial, mine, look, time.Now())
}

// stateOf is how a seat's state is shown.
func stateOf(s schedule.State) string {
	switch s {
	case schedule.Waiting, schedule.Throttled:
		return StateWaiting
	case schedule.Draining, schedule.Overrun:
		return StateDraining
	case schedule.Running:
		return StateRunning
	}
	return StateIdle
}
