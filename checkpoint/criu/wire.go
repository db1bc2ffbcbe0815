package criu

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// CRIU is asked by messages in protobuf (its rpc.proto), of which this file has the numbers that are needed. The requests:
const (
	requestDump     = 1
	requestRestore  = 2
	requestNotify   = 6 // the answer to a notice, which has this kind, too
	requestFeatures = 9
	requestVersion  = 10
)

// Fields of a request.
const (
	fieldType     = 1
	fieldOptions  = 2
	fieldNoticed  = 3
	fieldFeatures = 5
)

// Fields of a request's options.
const (
	optImagesFD     = 1 // must be there
	optPID          = 2
	optLeaveRunning = 3
	optShellJob     = 7
	optFileLocks    = 8
	optLogLevel     = 9
	optLogFile      = 10
	optNotices      = 12
	optLinkRemap    = 18
	optRstSibling   = 26
	optInheritFD    = 27
	optCgroups      = 34
	optGhostLimit   = 35
	optExternal     = 37
	optTimeout      = 45
	optTCPClose     = 52
	optLeaveStopped = 69
)

// Fields of an answer.
const (
	answerType     = 1
	answerSuccess  = 2
	answerRestore  = 4
	answerNotice   = 5
	answerErrno    = 7
	answerFeatures = 8
	answerMessage  = 9
	answerVersion  = 10
)

// message is one that is being written.
type message []byte

func (m *message) number(field protowire.Number, v int64) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), uint64(v))
}

func (m *message) flag(field protowire.Number, v bool) {
	if v {
		m.number(field, 1)
	}
}

func (m *message) text(field protowire.Number, v string) {
	*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), v)
}

func (m *message) inner(field protowire.Number, v message) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), v)
}

// request is a whole request.
func request(kind int64, options message) message {
	var m message
	m.number(fieldType, kind)
	m.inner(fieldOptions, options)
	if kind == requestFeatures {
		var all message
		for field := range protowire.Number(features) {
			all.flag(field+1, true)
		}
		m.inner(fieldFeatures, all)
	}
	return m
}

// Notices, for whose answer CRIU waits: that all of a program is there, and none of it has run yet; and that all of it is
// written, and none of it runs.
const (
	restored = "post-restore"
	written  = "post-dump"
)

// noticed is the answer to a notice: whether to go on.
func noticed(well bool) message {
	var m message
	m.number(fieldType, requestNotify)
	m.number(fieldNoticed, int64(protowire.EncodeBool(well))) // false is said, too
	return m
}

// errAnswer says that what came is no answer.
var errAnswer = errors.New("criu answers what lgpu does not understand")

// fields calls a function with each field of a message: with its number, or its bytes.
func fields(m []byte, each func(field protowire.Number, number int64, bytes []byte) error) error {
	for len(m) > 0 {
		field, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return errAnswer
		}
		m = m[n:]
		var number uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(m)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(m)
		default:
			n = protowire.ConsumeFieldValue(field, kind, m)
		}
		if n < 0 {
			return errAnswer
		}
		m = m[n:]
		if err := each(field, int64(number), bytes); err != nil {
			return err
		}
	}
	return nil
}

// answer is what CRIU says to a request.
type answer struct {
	kind     int64
	success  bool
	errno    int
	message  string
	pid      int    // of the restored process
	notice   string // what has come about, where this is no answer
	version  Version
	features Features
}

// parseAnswer reads an answer.
func parseAnswer(m []byte) (answer, error) {
	var a answer
	err := fields(m, func(field protowire.Number, number int64, bytes []byte) error {
		switch field {
		case answerType:
			a.kind = number
		case answerSuccess:
			a.success = number != 0
		case answerErrno:
			a.errno = int(int32(number))
		case answerMessage:
			a.message = string(bytes)
		case answerRestore:
			return fields(bytes, func(field protowire.Number, number int64, _ []byte) error {
				if field == 1 {
					a.pid = int(int32(number))
				}
				return nil
			})
		case answerNotice:
			return fields(bytes, func(field protowire.Number, _ int64, name []byte) error {
				if field == 1 {
					a.notice = string(name)
				}
				return nil
			})
		case answerVersion:
			return fields(bytes, a.version.field)
		case answerFeatures:
			return fields(bytes, a.features.field)
		}
		return nil
	})
	if err == nil && a.kind == 0 && a.message == "" && !a.success {
		return a, errAnswer
	}
	return a, err
}

// Version is CRIU's.
type Version struct{ Major, Minor, Sub int }

func (v *Version) field(field protowire.Number, number int64, _ []byte) error {
	switch field {
	case 1:
		v.Major = int(int32(number))
	case 2:
		v.Minor = int(int32(number))
	case 4:
		v.Sub = int(int32(number))
	}
	return nil
}

// String returns such as "4.1.1", or "4.1".
func (v Version) String() string {
	if v.Sub == 0 {
		return fmt.Sprintf("%d.%d", v.Major, v.Minor)
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Sub)
}

// Enough says whether lgpu can use this version: 4.1 is the first one that dumps programs on kernels from 6.13 on.
func (v Version) Enough() bool { return v.Major > 4 || v.Major == 4 && v.Minor >= 1 }

// sockets says whether this version dumps sockets of the network on any kernel. One before 4.2 asks each socket for SO_PASSCRED,
// which from Linux 6.16 on only those that could have it answer.
func (v Version) sockets() bool { return v.Major > 4 || v.Major == 4 && v.Minor >= 2 }

// features is how many CRIU names.
const features = 3

// Features are what CRIU can do with this kernel.
type Features struct {
	MemoryTracking bool // which pages were written since the last dump
	LazyPages      bool // to restore memory when it is touched
	PidfdStore     bool // to tell a process from a later one with its number
	Sockets        bool // to dump TCP and UDP sockets; CRIU does not say this, its version does
}

func (f *Features) field(field protowire.Number, number int64, _ []byte) error {
	switch field {
	case 1:
		f.MemoryTracking = number != 0
	case 2:
		f.LazyPages = number != 0
	case 3:
		f.PidfdStore = number != 0
	}
	return nil
}
