package server

import (
	"fmt"
	"math"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
)

// asked are the limits of a request. An error is the status of the call.
func asked(r *api.AttachRequest) (limits.Request, error) {
	m := r.GetLimits()
	out := limits.Request{MemoryPart: r.MemoryPart, HostMax: limits.FromPointer(r.HostMax), Overcommit: r.GetMemoryOvercommit()}
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
