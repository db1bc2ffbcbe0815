package layout

// # Collective operations
//
// A team's synchronization area lies in the heap, at the same offset on all members, and is zero at first. It has
// channels, one for each CTA of a collective operation: CTA b of a member talks to CTA b of the others and to nobody
// else. Thus CTAs need no common barrier, and any number of them that is equal on all members works. A device-side
// collective uses channel 0.
//
//	flags    [Channels][FlagRow(pes)]uint64     how many steps member m has begun on the channel; m writes it
//	lines    [LineChannels][2][pes][2*LineBytes(pes)]byte  what member m sent in the last even or odd step
//
// A step is a full exchange: no member ends step s on a channel before it has heard from every other that they have
// begun s. Hence a member in step s knows that all have ended s-2, and the lines of one parity are free when they are
// written again. Steps are counted on the device, by channel, in Team.Counters (uint64[Channels], local memory, zero
// at first), so that a captured graph can be replayed. They depend on nothing but the operations that the team has
// done, in the same order on all members; one team's operations must not run at the same time.
//
// Lines carry 4 bytes of data and 4 of the step's number in each 8 bytes, which are stored and loaded as one: data
// need no other flag and no fence. Members without TeamDirect use the lines' space as memory to read other members'
// data into.

const (
	// Channels is the most CTAs that a collective kernel has.
	Channels = 160
	// LineChannels is the most CTAs of an operation that sends lines.
	LineChannels = 16
	// CounterBytes is the size of what Team.Counters points to.
	CounterBytes = Channels * 8

	// LineSpace is the bytes of data by channel and parity, which members divide, each a multiple of LineMultiple and
	// no less than LineMinimum.
	LineSpace, LineMinimum, LineMultiple = 32 << 10, 256, 128
)

// Flags of a Team.
const (
	// TeamDirect: every member reaches every other by loads and stores, also seen from the others. It must be equal
	// on all.
	TeamDirect uint32 = 1 << iota
)

// LineBytes is how many bytes of data one member can send to another on one channel in one step.
func LineBytes(pes int) int {
	return max(LineMinimum, LineSpace/max(1, pes)/LineMultiple*LineMultiple)
}

// FlagRow is the number of flags of one channel, some after the members' unused, so that rows are sectors of their
// own.
func FlagRow(pes int) int { return (max(1, pes) + 3) &^ 3 }

// LineOffset is where the lines begin in a team's synchronization area.
func LineOffset(pes int) int { return Channels * FlagRow(pes) * 8 }

// TeamBytes is the size of a team's synchronization area. It must be aligned to 128 bytes.
func TeamBytes(pes int) int {
	if pes <= 1 {
		return LineOffset(pes)
	}
	return LineOffset(pes) + LineChannels*2*pes*2*LineBytes(pes)
}
