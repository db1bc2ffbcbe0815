package shmem

import (
	"fmt"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// reserved is the layout of the library's own part of the heap, at its beginning: the teams' synchronization areas;
// then mailboxes, by which PEs agree on new teams without the PEs that are not in them; then a little memory for values
// that go through queues. All are offsets in the heap, the same at all PEs.
type reserved struct {
	areas   []uint64 // by team: of its synchronization area
	sizes   []uint64 // by team: of all that it has here
	hosts   []uint64 // by team: of the synchronization area for blocking calls, after the other
	mails   []uint64 // by team: of [members][2][mailBytes], as mailbox, for collective operations of PEs without GPUs
	mailbox uint64   // [PEs][2][mailBytes]: from each PE, by parity
	stage   uint64   // stageBytes
	bytes   uint64
}

// A mail is mailBytes: a payload, and in the last word its number, which is written last.
const (
	mailBytes    = 128
	mailPayload  = mailBytes - 8
	reservedUnit = 256
)

// areaBytes is enough for a team of up to n PEs.
func areaBytes(n int) uint64 {
	most := 0
	for i := 1; i <= n; i++ {
		most = max(most, layout.TeamBytes(i))
	}
	return roundUp(uint64(most), reservedUnit)
}

// reserve lays the library's own part of the heap out. It needs nothing but what all PEs know. plain says that no PE
// has a GPU.
func reserve(peers []transport.PeerInfo, maxTeams int, plain bool) reserved {
	hosts, gpus := map[uint64]int{}, map[string]int{}
	node, gpu := 1, 1
	for _, q := range peers {
		hosts[q.Host]++
		node = max(node, hosts[q.Host])
		if q.HasGPU() {
			key := fmt.Sprint(q.Host, q.GPU)
			gpus[key]++
			gpu = max(gpu, gpus[key])
		}
	}
	r := reserved{areas: make([]uint64, maxTeams), sizes: make([]uint64, maxTeams),
		hosts: make([]uint64, maxTeams), mails: make([]uint64, maxTeams)}
	at := uint64(0)
	for id := range maxTeams {
		n := len(peers)
		switch uint32(id) {
		case layout.TeamShared, layout.TeamNode:
			n = node
		case layout.TeamSameMyPE:
			n = len(hosts)
		case layout.TeamSameGPU:
			n = gpu
		}
		r.areas[id] = at
		r.hosts[id] = at + areaBytes(n)
		r.sizes[id] = areaBytes(n) + roundUp(uint64(layout.LineOffset(n)), reservedUnit) // a sync sends no lines
		if plain {
			r.mails[id] = at + r.sizes[id]
			r.sizes[id] += uint64(n) * 2 * mailBytes
		}
		at += r.sizes[id]
	}
	r.mailbox = at
	at += roundUp(uint64(len(peers))*2*mailBytes, reservedUnit)
	r.stage = at
	r.bytes = at + stageBytes
	return r
}
