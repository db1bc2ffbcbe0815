package ptx

import "strconv"

// Special registers, as inst.sub of kSreg.
const (
	srTidX uint8 = iota
	srTidY
	srTidZ
	srLane
	srNtidX
	srNtidY
	srNtidZ
	srCtaX
	srCtaY
	srCtaZ
	srNctaX
	srNctaY
	srNctaZ
	srWarp
	srWarps
	srSM
	srSMs
	srGrid
	srClock
	srClockHi
	srClock64
	srTime
	srTimeLo
	srTimeHi
	srMaskEq
	srMaskLe
	srMaskLt
	srMaskGe
	srMaskGt
	srDynamicSize
	srTotalSize
	srZero
	srOne
	srLocalBase     // start of the frame's local memory
	srDynamicShared // start of dynamic shared memory
	srEnv           // and the 31 after it
)

var specials = func() map[string]uint8 {
	m := map[string]uint8{
		"%tid.x": srTidX, "%tid.y": srTidY, "%tid.z": srTidZ, "%ntid.x": srNtidX, "%ntid.y": srNtidY, "%ntid.z": srNtidZ,
		"%ctaid.x": srCtaX, "%ctaid.y": srCtaY, "%ctaid.z": srCtaZ, "%nctaid.x": srNctaX, "%nctaid.y": srNctaY, "%nctaid.z": srNctaZ,
		"%laneid": srLane, "%warpid": srWarp, "%nwarpid": srWarps, "%smid": srSM, "%nsmid": srSMs, "%gridid": srGrid,
		"%clock": srClock, "%clock_hi": srClockHi, "%clock64": srClock64, "%globaltimer": srTime, "%globaltimer_lo": srTimeLo,
		"%globaltimer_hi": srTimeHi, "%lanemask_eq": srMaskEq, "%lanemask_le": srMaskLe, "%lanemask_lt": srMaskLt,
		"%lanemask_ge": srMaskGe, "%lanemask_gt": srMaskGt, "%dynamic_smem_size": srDynamicSize, "%total_smem_size": srTotalSize,
		"%is_explicit_cluster": srZero, "%cluster_ctarank": srZero, "%cluster_nctarank": srOne,
	}
	// A launch without clusters has clusters of one block.
	for _, d := range []string{"x", "y", "z"} {
		m["%cluster_ctaid."+d], m["%cluster_nctaid."+d] = srZero, srOne
		m["%clusterid."+d] = m["%ctaid."+d]
		m["%nclusterid."+d] = m["%nctaid."+d]
	}
	for i := range 32 {
		m["%envreg"+strconv.Itoa(i)] = srEnv + uint8(i)
	}
	return m
}()

// special writes a special register plus add into d.
func (w *warp) special(d *vec, sub uint8, add uint64, f *frame, used int64) {
	b := w.block
	var v uint64
	switch sub {
	case srTidX, srTidY, srTidZ:
		*d = w.tid[sub-srTidX]
		return
	case srLane, srMaskEq, srMaskLe, srMaskLt, srMaskGe, srMaskGt:
		for i := range d {
			d[i] = laneValue(sub, uint(i))
		}
		return
	case srNtidX, srNtidY, srNtidZ:
		v = uint64(b.grid.launch.Block[sub-srNtidX])
	case srCtaX, srCtaY, srCtaZ:
		v = uint64(b.index[sub-srCtaX])
	case srNctaX, srNctaY, srNctaZ:
		v = uint64(b.grid.launch.Grid[sub-srNctaX])
	case srWarp:
		v = uint64(w.id)
	case srWarps:
		v = 64 // warps a unit may hold
	case srSM:
		v = uint64(uint32(b.at.SM))
	case srSMs:
		v = uint64(uint32(b.at.SMs))
	case srGrid:
		v = b.grid.launch.ID
	case srClock:
		v = uint64(uint32(b.at.Cycle + used))
	case srClockHi:
		v = uint64(b.at.Cycle+used) >> 32
	case srClock64:
		v = uint64(b.at.Cycle + used)
	case srTime:
		v = uint64(b.nanos(used))
	case srTimeLo:
		v = uint64(uint32(b.nanos(used)))
	case srTimeHi:
		v = uint64(b.nanos(used)) >> 32
	case srDynamicSize:
		v = uint64(b.grid.launch.SharedDynamic)
	case srTotalSize:
		v = uint64(len(b.shared))
	case srOne:
		v = 1
	case srLocalBase:
		v = uint64(f.localBase) + add
	case srDynamicShared:
		v = uint64(b.grid.dynamicBase) + add
	default:
		if sub >= srEnv {
			v = uint64(b.grid.launch.EnvReg[sub-srEnv])
		}
	}
	for i := range d {
		d[i] = v
	}
}

func laneValue(sub uint8, i uint) uint64 {
	bit := uint64(1) << i
	switch sub {
	case srMaskEq:
		return bit
	case srMaskLt:
		return bit - 1
	case srMaskLe:
		return bit<<1 - 1
	case srMaskGt:
		return uint64(uint32(-(bit << 1)))
	case srMaskGe:
		return uint64(uint32(-bit))
	}
	return uint64(i)
}
