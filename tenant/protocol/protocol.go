// Package protocol is the language of the daemon's socket for tenants: what the interposer and the daemon say to each
// other. The Go types are its only source; tenant/liblgpu/daemon/link_gen.h is generated from them (go generate
// ./tenant/region).
//
// The socket is of the kind SOCK_SEQPACKET. Every packet is one Message, in the machine's byte order; a Refuse may be
// followed by text. No message says who the client is: the daemon asks the kernel.
//
//	client → daemon                              daemon → client
//	Hello     first of all                       Welcome   client index, fds of Limits and Usage | Refuse
//	Gate      launches on a device from now on   Free | Open
//	Want      a launch waits at a closed gate    Open      run until Busy reaches Value
//	Closed    gate closed and device drained     Close     let nothing more in
//	                                             Seep      let so many launches pass a closed gate
//	Need      memory beyond what is granted      Memory    asked and answered; look at Granted again
//	                                             Gone      memory that was given away has left the device
//	Sliced    the time slice in force            Slice     set the hardware's time slice of this client's contexts
//	Kept      memory that is resident            Keep      how much memory may be resident
//	                                             Store     a memory file for copies of what is not, its fd
//	Halted    nothing is under way, or cannot be Halt      let nothing begin, or go on
//	Parked    nothing leads out of the process   Park      give up all that leads out of the process
//
// After the Welcome of a reconnect, the client first sends a Need of nothing, which says that it uses the new Limits
// from now on. This Need has no answer. While a Want, or a Closed with FlagWaiting, has not been answered, the daemon
// changes the beat in the limits (Beat).
//
// # Grants
//
// An Open with a new Serial begins a grant. So do a Seep, and a Close at a free gate; these grants are over as soon as
// the work in flight has ended. An Open with the Serial of the open grant changes that grant. An Open with the Serial
// of a grant that the client has already ended means nothing: it crossed the Closed on the way.
//
// A client ends a grant in three cases: when the lgpu's Busy counter, with the work in flight, reaches Value; at a
// Close; and, if FlagWanted is set, when it has had nothing to run for Linger, or for Patience with FlagPatient. Every
// grant is ended by exactly one Closed, or by a Free. A Closed that crosses the Free on the way means nothing.
//
// # Time slices
//
// A Slice names the time, in µs, for which the hardware runs a context of the client on this device while another
// context has work there; 0 is the driver's own. It holds for all contexts of the client on that device, those made
// later included, until the next Slice for it, or until the connection ends: then the client puts back the driver's
// own. Every Slice is answered by a Sliced, with what was read back from the driver afterwards. More Sliced follow,
// unasked, when that changes: a context was made or is no more, or the program has set another slice itself. In the
// last case the first Sliced has the value that was found, and the next one what is in force after it was put right. A
// Sliced is the word of the client alone.
//
// # Memory that can leave the device
//
// A client of an lgpu with memory.overcommit says at the start, for each device that it uses, Need with FlagResident and
// Value 0. From then on it holds no more of its device's memory resident than the Value of the latest Keep for that device
// (a level: of this client alone, 0 until the first Keep). What it can move is moved; what it cannot (contexts, code,
// arrays, memory given away) counts too. A client that wants more says Need with FlagResident and the level it wants, and
// in Extra what of it it needs now; it may wait as long as it takes for a Keep with that level or more. A Keep with
// FlagRefused says that it will never come, and leaves the level as it is.
//
// A client that has made a context says Need with FlagResident and FlagFixed, an ID of its own, and how much of the device
// it has now that cannot leave it by any means (contexts, code). It is answered at once, by a Keep with FlagFixed and that
// ID, which is no level and has no answer; with FlagRefused if another lgpu could then never come back to the device, or
// the client's own could have no memory there: so the client ends the context again. A daemon that does not know the flag
// takes it for a level that is wanted, and a client that hears nothing for a second goes on. With an ID of 0, as after a
// reconnect, it is no question and has no answer.
//
// A level is any amount. If it is less than what is resident, the client stops at its next launch or copy, and so much
// leaves that no more than the level is resident; the client runs again once a level has room for all that it holds. A
// level that is more than what is resident, and less than all, has so much come back as it has room for, and the client
// stays stopped. What moves are pieces, so that up to one of them less than the level may be resident.
//
// Every Keep is answered by a Kept with the same Serial: when the move has ended, with what then is resident, and in Extra
// what the client holds, resident or not; or with FlagRefused, what still is, and in Extra why (Why...), as soon as the
// client knows that it will not get there.
// Then it goes on with what is resident, and the level that it has is what is still resident. A Keep that comes while
// the client is busy with an older one takes the older one's place at the next piece, whichever way that one moved, and
// only the newer one is answered. While a long move goes on, Kept with Serial 0 and FlagMoving says how much is resident
// by now, in ID the Serial of the Keep that it is about, and in Extra what the client holds. What has left by it does not
// come back without a newer Keep, even if the move fails later; so it may be given to others at once, if that Keep is the
// latest: one that speaks of an older Keep may be about memory that comes back and goes on to do so. A daemon that does
// not know the flag learns what is resident, and no more. Unasked, Kept
// with Serial 0 says that less is resident, since memory was freed; with FlagAsOf and, in ID, the Serial of the last Keep that
// the client had answered when it looked. If that is not the latest one, it may have looked in the midst of a move, in which
// less is resident as well: then it says nothing of what was freed. After a reconnect the client says first of all (for
// each device) Kept with Serial 0 and what is resident, and goes on with the level it had until a Keep comes.
//
// What has left the device lies in the Store of the client and the device: files made by the daemon, one of memory
// (FlagPinned) and, where there is too little, one on a disk, of Value bytes each, which only grow. The first Store of a
// file brings its fd, later ones only say that it is longer; after a reconnect the client sends the fd back with its
// Kept, and where it has two, the one on the disk with a Kept with FlagMore before that. The daemon has touched all of the
// memory, and the client registers it with the driver when it hears of it, so that copies run at the speed of the link.
// A client that has no room in its Store for what is to leave the device refuses the Keep (WhyStore).
//
// # Programs that leave their devices
//
// A Halt with a Value closes all gates of the client, whatever the grants say. It is answered by a Halted with its Serial
// once no launch is under way, the work of all contexts has ended, and no thread of the library is inside the driver; with
// FlagRefused and why if that takes longer than Value ns. Then, and after a Halt with Value 0, which is answered too, the
// gates are open as before. A client whose connection ends while it is halted goes on.
//
// A halted client that is told to Park keeps private copies of Limits and Usage at the same addresses, says Parked, and
// closes the connection and its descriptors, so that nothing of it leads to another process. It stays halted. With
// FlagRefused it cannot be parked, and says why. A parked client looks whether the socket at its path has another inode or
// time of change than before, and then, or after a second, says Hello with FlagRejoin. To one that is to wait the daemon
// says Refuse. The others get a Welcome with both descriptors, as one that is new, whatever process they are by now: it may
// have been restored from an image. Before they use the new Usage they charge there all that they hold. Until that fits,
// they ask for it by Need, and say once Halted with FlagRefused and WhyMemory. Then they say Halted with Serial 0, and stay
// halted until a Halt with Value 0.
//
// # Versions
//
// Slice and Sliced, and Halt and what follows it, were added to Version 1. A client that does not know Halt ignores it, and
// one that does not know Slice as well (a kind that it does not understand costs it a line of its log), so a daemon must take
// silence for "the driver's own". A daemon that does not
// know Sliced would end the connection; so a client says Sliced only after a Slice on the same connection.
package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Version of the protocol. Either side refuses any other.
const Version = 1

// Linger is how long an open gate stays open with nothing to run while others wait, in ns. Shorter gaps are charged.
const Linger = 60_000

// Patience takes the place of Linger where another lgpu's work would have to be stopped in the middle after the pause:
// that costs more than a longer pause.
const Patience = 250_000

// Beat is the longest time between two beats (region.DeviceLimits) while a launch waits for the daemon, in ns. After
// Silence without a beat a waiting process takes the daemon for hung, cuts the connection and uses its own credit. It
// counts only the time between its own looks, since it may have been stopped itself.
const (
	Beat    = 50_000_000
	Silence = 150_000_000
)

// Forever is the Value of an Open without end.
const Forever uint64 = 1<<64 - 1

// Size is that of a Message in bytes, MaxText the longest text after a Refuse.
const (
	Size    = 64
	MaxText = 512
)

// Kinds of message.
const (
	Hello uint16 = iota + 1
	Gate
	Want
	Closed
	Need
	Welcome
	Refuse
	Free
	Open
	Close
	Seep
	Memory
	Gone
	Slice
	Sliced
	Keep
	Kept
	Store
	Halt
	Halted
	Park
	Parked
)

// Why a client cannot do what a Keep, a Halt or a Park asks (Extra of the answer, with FlagRefused).
const (
	WhyBusy    uint64 = iota + 1 // work that does not end: a kernel, or a stream that waits for something
	WhyCapture                   // a stream that is being captured and stays so
	WhyFixed                     // memory that cannot leave the device
	WhyStore                     // there is too little room in the Store
	WhyDriver                    // the driver refused; what had left the device is back. Its error follows, from WhyBits on
	WhyMemory                    // the lgpu has no room for what the client holds: Value bytes of Device, or (FlagHost) of the host
)

// WhyBits is how many bits of Extra say why.
const WhyBits = 8

// Flags.
const (
	// FlagView (Hello): only looks (nvidia-smi), is no client; the connection ends with the Welcome.
	FlagView uint32 = 1 << iota
	// FlagReconnect (Hello): was a client before the daemon restarted. ID and Client say of which lgpu and which
	// one, and the fd of its Usage comes along, unless the kernel says EPERM: then the daemon has it. (Welcome):
	// only the fd of Limits comes along.
	FlagReconnect
	// FlagWanted (Open): another lgpu waits for the device.
	FlagWanted
	// FlagWaiting (Closed): launches wait at the gate.
	FlagWaiting
	// FlagHost (Need): page-locked host memory.
	FlagHost
	// FlagRunning (Gate): work is in flight already, since before a reconnect; a Closed will follow without an
	// Open.
	FlagRunning
	// FlagRefused (Sliced): the driver did not take the slice for all contexts, or cannot be asked to. (Keep): the level
	// that was asked for will never be given. (Kept): more than the level is still resident.
	FlagRefused
	// FlagPatient (Open): the device preempts, so the gate stays open for Patience instead of Linger.
	FlagPatient
	// FlagResident (Need): Value is the level of resident memory that is wanted.
	FlagResident
	// FlagPinned (Store): the file is memory, touched, and to be registered with the driver.
	FlagPinned
	// FlagAsk (Hello): only asks whether the process may be a client. The Welcome brings nothing, and no lgpu is activated
	// for it. A daemon that does not know the flag makes the process a client, until it ends.
	FlagAsk
	// FlagMore (Kept): the client has another file, which comes with the next Kept.
	FlagMore
	// FlagNoted (Open): others use the device at the same time, and the lgpu is charged by what the hardware notes of them
	// and it, or by the clock. The client's own accounts may be coarse.
	FlagNoted
	// FlagMoving (Kept): a move goes on, and so much is resident by now.
	FlagMoving
	// FlagRejoin (Hello): was parked, and holds memory that it has to charge.
	FlagRejoin
	// FlagFixed (Need, with FlagResident): Value is what cannot leave the device. (Keep): the answer to that.
	FlagFixed
	// FlagAsOf (Kept, unasked): ID is the Serial of the last Keep that was answered before Value was looked at, 0 for none.
	FlagAsOf
)

// Message is everything either side says. Fields that a kind does not name are zero.
type Message struct {
	Kind    uint16
	Version uint16 // Hello, Welcome
	Device  uint32 // index in Limits: Gate and after
	Client  uint32 // index in Usage: Hello with FlagReconnect, Welcome
	Flags   uint32
	ID      uint64 // of the lgpu: Hello with FlagReconnect, Welcome; Serial of the Keep: Kept with FlagMoving, FlagAsOf;
	// of the client: Need with FlagFixed and its Keep
	Serial uint64 // of the grant: Open, Close, Closed; of the level: Keep, Kept, Halt, Halted
	// Value is, by kind: Open: Busy at which the grant ends, or Forever. Closed: Busy then. Need: bytes. Memory:
	// bytes granted. Seep: launches. Gone: bytes. Refuse: errno. Slice: µs, 0 for the driver's own. Sliced: µs, the
	// longest in force among the client's contexts on the device; 0: there is none, or it cannot be read. Keep, Kept:
	// bytes that may be, and are, resident. Store: bytes that the file has. Halt: ns that it may take; 0: go on. Halted:
	// that of the Halt; with WhyMemory bytes.
	Value uint64
	Extra uint64 // Kept with FlagRefused: why; Need with FlagResident: bytes that are needed now, 0: all
	_     [2]uint64
}

// ErrMalformed: a packet is no message.
var ErrMalformed = errors.New("malformed message")

// Append appends m as it travels.
func (m Message) Append(b []byte) []byte {
	e := binary.NativeEndian
	b = e.AppendUint16(b, m.Kind)
	b = e.AppendUint16(b, m.Version)
	b = e.AppendUint32(b, m.Device)
	b = e.AppendUint32(b, m.Client)
	b = e.AppendUint32(b, m.Flags)
	b = e.AppendUint64(b, m.ID)
	b = e.AppendUint64(b, m.Serial)
	b = e.AppendUint64(b, m.Value)
	b = e.AppendUint64(b, m.Extra)
	return append(b, make([]byte, 16)...)
}

// Parse reads a packet. The text is that of a Refuse, with what is not printable replaced.
func Parse(packet []byte) (m Message, text string, err error) {
	if len(packet) < Size || len(packet) > Size+MaxText {
		return Message{}, "", fmt.Errorf("%w: %d bytes instead of %d", ErrMalformed, len(packet), Size)
	}
	e := binary.NativeEndian
	m = Message{
		Kind: e.Uint16(packet), Version: e.Uint16(packet[2:]), Device: e.Uint32(packet[4:]), Client: e.Uint32(packet[8:]),
		Flags: e.Uint32(packet[12:]), ID: e.Uint64(packet[16:]), Serial: e.Uint64(packet[24:]), Value: e.Uint64(packet[32:]),
		Extra: e.Uint64(packet[40:]),
	}
	if m.Kind < Hello || m.Kind > Parked {
		return Message{}, "", fmt.Errorf("%w: kind %d", ErrMalformed, m.Kind)
	}
	if len(packet) > Size && m.Kind != Refuse {
		return Message{}, "", fmt.Errorf("%w: %d bytes after kind %d", ErrMalformed, len(packet)-Size, m.Kind)
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(string(packet[Size:]), "?"))
	return m, text, nil
}
