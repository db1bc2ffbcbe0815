package tree

import "github.com/lgpu/lgpu/tree/list"

// StateVersion is the version of State that this package writes.
const StateVersion = 1

// State is everything that must survive a restart, for JSON. It holds requests, not results: Load computes those again.
type State struct {
	Version int         `json:"version"`
	LastID  uint64      `json:"last_id"` // the highest ID given so far
	Nodes   []NodeState `json:"nodes"`   // parents before their children, siblings by name; the root first
}

// NodeState is one node of a State.
type NodeState struct {
	ID        uint64                  `json:"id"`
	Path      string                  `json:"path"`
	Temporary bool                    `json:"temporary,omitempty"`
	UID       uint32                  `json:"uid,omitempty"`
	GID       uint32                  `json:"gid,omitempty"`
	Gang      string                  `json:"gang,omitempty"`
	Cgroups   []string                `json:"cgroups,omitempty"`
	HostMax   *uint64                 `json:"host_max,omitempty"` // bytes
	Devices   map[string]DeviceLimits `json:"devices,omitempty"`  // by UUID, also of devices that are gone
}

// DeviceLimits are a node's requests for one device. What is left out is not limited.
type DeviceLimits struct {
	Follow    Follow    `json:"follow,omitempty"`    // which set is followed where neither Count nor List is there
	Count     *int      `json:"count,omitempty"`     // anonymous bits
	Held      list.Set  `json:"held,omitzero"`       // the bits that Count has got
	List      *list.Set `json:"list,omitempty"`      // named bits
	Exclusive bool      `json:"exclusive,omitempty"` // no sibling may hold them

	Weight     uint32    `json:"weight,omitempty"` // 0 is DefaultWeight
	Priority   *Priority `json:"priority,omitempty"`
	ComputeMax *uint32   `json:"compute_max,omitempty"` // hundredths of a percent
	ComputeMin *uint32   `json:"compute_min,omitempty"` // hundredths of a percent
	MemoryMax  *uint64   `json:"memory_max,omitempty"`  // bytes
	MemoryHigh *uint64   `json:"memory_high,omitempty"` // bytes
}

// Follow is the set that a node follows without a request of its own.
type Follow string

// Sets to follow.
const (
	FollowMax     Follow = ""        // the parent's bits
	FollowDefault Follow = "default" // the device's default bits, as far as the parent has them
)
