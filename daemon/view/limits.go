package view

import (
	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/policy/limits"
)

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
		text, count := l.List.String(), uint32(l.List.Count())
		m.List, m.Count, m.Default = &text, &count, false
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

func priorityMessage(p limits.Priority) api.Priority {
	switch p {
	case limits.Normal:
		return api.Priority_NORMAL
	case limits.High:
		return api.Priority_HIGH
	}
	return api.Priority_LATENCY
}
