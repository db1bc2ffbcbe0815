package main

// #include "lshmem.h"
import "C"

import (
	"math/bits"
	"unsafe"

	"github.com/lgpu/lgpu/shmem"
	"github.com/lgpu/lgpu/shmem/layout"
)

func teamID(t C.lshmem_team_t) shmem.TeamID { return shmem.TeamID(uint32(t)) }

//export shmemTeamSplitStrided
func shmemTeamSplitStrided(handle C.lshmem_pe_t, parent C.lshmem_team_t, start, stride, size C.int, out *C.lshmem_team_t) C.int {
	return number(handle, "team_split_strided", out, func(pe *shmem.PE) (shmem.TeamID, error) {
		return pe.TeamSplitStrided(teamID(parent), int(start), int(stride), int(size))
	})
}

//export shmemTeamSplit2D
func shmemTeamSplit2D(handle C.lshmem_pe_t, parent C.lshmem_team_t, xRange C.int, x, y *C.lshmem_team_t) C.int {
	const op = "team_split_2d"
	return with(handle, op, func(pe *shmem.PE) error {
		if x == nil || y == nil {
			return errNil(op)
		}
		tx, ty, err := pe.TeamSplit2D(teamID(parent), int(xRange))
		if err == nil {
			*x, *y = C.lshmem_team_t(tx), C.lshmem_team_t(ty)
		}
		return err
	})
}

//export shmemTeamCreate
func shmemTeamCreate(handle C.lshmem_pe_t, members *C.int, count C.int, out *C.lshmem_team_t) C.int {
	const op = "team_create"
	return number(handle, op, out, func(pe *shmem.PE) (shmem.TeamID, error) {
		if members == nil || count < 1 || int(count) > pe.Size() {
			return 0, argument(op, "%d members of %d PEs", count, pe.Size())
		}
		list := make([]int, count)
		for i, m := range unsafe.Slice(members, count) {
			list[i] = int(m)
		}
		return pe.TeamCreate(list)
	})
}

//export shmemTeamDestroy
func shmemTeamDestroy(handle C.lshmem_pe_t, team C.lshmem_team_t) C.int {
	return with(handle, "team_destroy", func(pe *shmem.PE) error { return pe.TeamDestroy(teamID(team)) })
}

// knownTeam is the error of a team that this PE is in none of.
func knownTeam(pe *shmem.PE, op string, team C.lshmem_team_t) error {
	if uint32(team) >= layout.MaxTeams || pe.TeamPEs(teamID(team)) <= 0 {
		return argument(op, "%d is not a team of PE %d", team, pe.Rank())
	}
	return nil
}

//export shmemTeamMyPE
func shmemTeamMyPE(handle C.lshmem_pe_t, team C.lshmem_team_t, out *C.int) C.int {
	return number(handle, "team_my_pe", out, func(pe *shmem.PE) (int, error) {
		if team == C.LSHMEM_TEAM_INVALID {
			return -1, nil
		}
		return pe.TeamMyPE(teamID(team)), knownTeam(pe, "team_my_pe", team)
	})
}

//export shmemTeamPEs
func shmemTeamPEs(handle C.lshmem_pe_t, team C.lshmem_team_t, out *C.int) C.int {
	return number(handle, "team_n_pes", out, func(pe *shmem.PE) (int, error) {
		return pe.TeamPEs(teamID(team)), knownTeam(pe, "team_n_pes", team)
	})
}

//export shmemTeamTranslate
func shmemTeamTranslate(handle C.lshmem_pe_t, from C.lshmem_team_t, index C.int, to C.lshmem_team_t, out *C.int) C.int {
	const op = "team_translate_pe"
	return number(handle, op, out, func(pe *shmem.PE) (int, error) {
		for _, t := range []C.lshmem_team_t{from, to} {
			if err := knownTeam(pe, op, t); err != nil {
				return 0, err
			}
		}
		if index < 0 || int(index) >= pe.TeamPEs(teamID(from)) {
			return 0, argument(op, "member %d of %d", index, pe.TeamPEs(teamID(from)))
		}
		return pe.TeamTranslate(teamID(from), int(index), teamID(to)), nil
	})
}

//export shmemBarrier
func shmemBarrier(handle C.lshmem_pe_t, team C.lshmem_team_t) C.int {
	return with(handle, "barrier", func(pe *shmem.PE) error { return pe.Barrier(teamID(team)) })
}

//export shmemSync
func shmemSync(handle C.lshmem_pe_t, team C.lshmem_team_t) C.int {
	return with(handle, "sync", func(pe *shmem.PE) error { return pe.Sync(teamID(team)) })
}

//export shmemBarrierOnStream
func shmemBarrierOnStream(handle C.lshmem_pe_t, team C.lshmem_team_t, stream C.uint64_t) C.int {
	return with(handle, "barrier_on_stream", func(pe *shmem.PE) error { return pe.BarrierOnStream(teamID(team), uintptr(stream)) })
}

//export shmemSyncOnStream
func shmemSyncOnStream(handle C.lshmem_pe_t, team C.lshmem_team_t, stream C.uint64_t) C.int {
	return with(handle, "sync_on_stream", func(pe *shmem.PE) error { return pe.SyncOnStream(teamID(team), uintptr(stream)) })
}

// bytesOf is the size of count elements.
func bytesOf(op string, kind C.int, count C.size_t) (uint64, error) {
	n, err := elementBytes(op, kind)
	if err != nil {
		return 0, err
	}
	over, bytes := bits.Mul64(n, uint64(count))
	if over != 0 {
		return 0, argument(op, "%d elements of %d bytes are more than there are addresses", uint64(count), n)
	}
	return bytes, nil
}

// Collective operations: on a stream, or else blocking.

//export shmemBroadcast
func shmemBroadcast(handle C.lshmem_pe_t, team C.lshmem_team_t, kind C.int, dst, src C.uint64_t, count C.size_t, root, onStream C.int, stream C.uint64_t) C.int {
	return exchange(handle, "broadcast", team, kind, dst, src, count, onStream, stream,
		func(pe *shmem.PE, t shmem.TeamID, dst, src, n uint64) error {
			return pe.Broadcast(t, dst, src, n, int(root))
		},
		func(pe *shmem.PE, t shmem.TeamID, dst, src, n uint64, stream uintptr) error {
			return pe.BroadcastOnStream(t, dst, src, n, int(root), stream)
		})
}

//export shmemFCollect
func shmemFCollect(handle C.lshmem_pe_t, team C.lshmem_team_t, kind C.int, dst, src C.uint64_t, count C.size_t, onStream C.int, stream C.uint64_t) C.int {
	return exchange(handle, "fcollect", team, kind, dst, src, count, onStream, stream, (*shmem.PE).FCollect, (*shmem.PE).FCollectOnStream)
}

//export shmemAllToAll
func shmemAllToAll(handle C.lshmem_pe_t, team C.lshmem_team_t, kind C.int, dst, src C.uint64_t, count C.size_t, onStream C.int, stream C.uint64_t) C.int {
	return exchange(handle, "alltoall", team, kind, dst, src, count, onStream, stream, (*shmem.PE).AllToAll, (*shmem.PE).AllToAllOnStream)
}

// exchange is a collective operation that moves elements as they are: now, or on the stream.
func exchange(handle C.lshmem_pe_t, op string, team C.lshmem_team_t, kind C.int, dst, src C.uint64_t, count C.size_t, onStream C.int,
	stream C.uint64_t, now func(*shmem.PE, shmem.TeamID, uint64, uint64, uint64) error,
	later func(*shmem.PE, shmem.TeamID, uint64, uint64, uint64, uintptr) error) C.int {
	return with(handle, op, func(pe *shmem.PE) error {
		n, err := bytesOf(op, kind, count)
		switch {
		case err != nil:
			return err
		case onStream == 0:
			return now(pe, teamID(team), uint64(dst), uint64(src), n)
		}
		return later(pe, teamID(team), uint64(dst), uint64(src), n, uintptr(stream))
	})
}

//export shmemReduce
func shmemReduce(handle C.lshmem_pe_t, team C.lshmem_team_t, kind, what C.int, dst, src C.uint64_t, count C.size_t, onStream C.int, stream C.uint64_t) C.int {
	return with(handle, "reduce", func(pe *shmem.PE) error {
		if onStream == 0 {
			return pe.Reduce(teamID(team), uint32(kind), uint32(what), uint64(dst), uint64(src), uint64(count))
		}
		return pe.ReduceOnStream(teamID(team), uint32(kind), uint32(what), uint64(dst), uint64(src), uint64(count), uintptr(stream))
	})
}

//export shmemReduceScatter
func shmemReduceScatter(handle C.lshmem_pe_t, team C.lshmem_team_t, kind, what C.int, dst, src C.uint64_t, count C.size_t, onStream C.int, stream C.uint64_t) C.int {
	return with(handle, "reducescatter", func(pe *shmem.PE) error {
		if onStream == 0 {
			return pe.ReduceScatter(teamID(team), uint32(kind), uint32(what), uint64(dst), uint64(src), uint64(count))
		}
		return pe.ReduceScatterOnStream(teamID(team), uint32(kind), uint32(what), uint64(dst), uint64(src), uint64(count), uintptr(stream))
	})
}
