package server

import (
	"fmt"
	"math"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
)

// Limits as messages, and back.

// requested are limits that were asked for.
func requested(l limits.Limits) *api.Limits {
	m := &api.Limits{
		MemoryMax: l.MemoryMax.Pointer(), MemoryHigh: l.MemoryHigh.Pointer(), ComputeMax: l.ComputeMax,
		ComputeMin: l.ComputeMin, Lgpu: unitsMessage(l),
	}
	if l.Weight != 0 {
		m.LgpuWeight = &l.Weight
	}
	if l.Priority != nil {
		m.LgpuPriority = priorityMessage(*l.Priority)
	}
	return m
}

// unitsMessage is a request for compute units, absent where the parent is followed.
func unitsMessage(l limits.Limits) *api.Units {
	m := &api.Units{Default: l.Follow == limits.FollowDefault, Exclusive: l.Exclusive}
	switch {
	case l.List != nil:
		text := l.List.String()
		m.List, m.Default = &text, false
	case l.Count != nil:
		count := uint32(max(*l.Count, 0))
		m.Count, m.Default = &count, false
	case !m.Default:
		return nil
	}
	return m
}

// effective are limits that hold. Units without names are only counted.
func effective(e limits.Effective, named bool) *api.Effective {
	m := &api.Effective{
		Count: uint32(e.Bits.Count()), ComputeMax: e.ComputeMax, ComputeMin: e.ComputeMin, LgpuWeight: e.Weight,
		LgpuPriority: priorityMessage(e.Priority), MemoryMax: e.MemoryMax.Pointer(),
	}
	if named {
		m.List = e.Bits.String()
	}
	return m
}

// asked are the limits of a request. An error is the status of the call.
func asked(r *api.AttachRequest) (limits.Request, error) {
	m := r.GetLimits()
	out := limits.Request{MemoryPart: r.MemoryPart, HostMax: limits.FromPointer(r.HostMax)}
	if m == nil {
		return out, nil
	}
	out.Limits = limits.Limits{
		MemoryMax: limits.FromPointer(m.MemoryMax), MemoryHigh: limits.FromPointer(m.MemoryHigh),
		ComputeMax: m.ComputeMax, ComputeMin: m.ComputeMin,
	}
	if m.LgpuWeight != nil {
		if out.Weight = *m.LgpuWeight; out.Weight == 0 {
			return out, refuse("lgpu.weight", fmt.Sprintf("weights are %d to %d", limits.MinWeight, limits.MaxWeight))
		}
	}
	if p := m.GetLgpuPriority(); p != api.Priority_INHERITED {
		priority, known := priorities[p]
		if !known { // of a later version
			return out, refuse("lgpu.priority", fmt.Sprintf("there is no priority %v", p))
		}
		out.Priority = &priority
	}
	return out, askedUnits(m.GetLgpu(), &out.Limits)
}

// askedUnits reads a request for compute units.
func askedUnits(m *api.Units, l *limits.Limits) error {
	if m == nil {
		return nil
	}
	l.Exclusive = m.GetExclusive()
	switch {
	case m.List != nil:
		set, err := list.Parse(*m.List, list.MaxBits)
		if err != nil {
			return refuse("lgpu", err.Error())
		}
		l.List = &set
	case m.Count != nil:
		count := int(min(*m.Count, math.MaxInt32))
		l.Count = &count
	case m.GetDefault():
		l.Follow = limits.FollowDefault
	}
	return nil
}

var priorities = map[api.Priority]limits.Priority{
	api.Priority_NORMAL: limits.Normal, api.Priority_HIGH: limits.High, api.Priority_LATENCY: limits.Latency,
}

func priorityMessage(p limits.Priority) api.Priority {
	for message, q := range priorities {
		if p == q {
			return message
		}
	}
	return api.Priority_INHERITED
}
