package mlx5

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestHeader holds entries and numbers to those of rdma-core's public header, in the form that its own inline functions
// write.
func TestHeader(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/mlx5dv.h"); err != nil {
		t.Skip("rdma-core's headers are not installed (Debian: libibverbs-dev)")
	}
	program := filepath.Join(t.TempDir(), "segments")
	if out, err := exec.Command("cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/segments.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	data := []Data{{1, 2, 3}}
	var ranges []Data
	for i := range uint32(7) {
		ranges = append(ranges, Data{i + 1, 2 * (i + 1), 3 * uint64(i+1)})
	}
	entries := map[string]*Entry{
		"write": {Opcode: OpWrite, Index: 0xfffe, Queue: 0x123456, Flags: CtrlCompletion | FenceAll, RemoteAddress: 0x0102030405060708,
			RemoteKey: 0x11121314, Data: []Data{{0x1000, 0x21222324, 0x3132333435363738}}},
		"ranges":   {Opcode: OpWrite, Index: 3, Queue: 1, RemoteAddress: 1, RemoteKey: 2, Data: ranges},
		"inline12": {Opcode: OpWrite, Flags: CtrlCompletion, HasInline: true, Inline: []byte("twelve bytes")},
		"inline60": {Opcode: OpWrite, Flags: FenceSmall, HasInline: true,
			Inline: []byte("sixty bytes of payload, which is more than one block holds..")},
		"immediate": {Opcode: OpWriteImm, Flags: CtrlSolicited, Immediate: 0xdeadbeef, Data: data},
		"read":      {Opcode: OpRead, Data: data},
		"send":      {Opcode: OpSend, Data: data},
		"add":       {Opcode: OpFetchAdd, RemoteAddress: 8, Atomic: Atomic{Add: 0x0102030405060708}, Data: []Data{{8, 2, 3}}},
		"swap":      {Opcode: OpCompareSwap, RemoteAddress: 8, Atomic: Atomic{Operand: 0x0102030405060708, Compare: 0x1112131415161718}, Data: []Data{{8, 2, 3}}},
		"nop":       {Opcode: OpNOP, Flags: CtrlCompletion},
	}
	at := map[string]int{"bytes": CompletionByteCount, "time": CompletionTimestamp, "queue": CompletionQueue, "counter": CompletionCounter,
		"owner": CompletionOwner, "vendor": CompletionVendor, "syndrome": CompletionSyndrome}
	is := map[string]int{"size": BlockBytes, "good": CompletionRequester, "error": CompletionError, "responder error": CompletionRespError,
		"invalid": CompletionInvalid, "01": SyndromeLocalLength, "02": SyndromeLocalQueue, "04": SyndromeLocalProtect, "05": SyndromeFlushed,
		"06": SyndromeBind, "10": SyndromeBadResponse, "11": SyndromeLocalAccess, "12": SyndromeRemoteRequest, "13": SyndromeRemoteAccess,
		"14": SyndromeRemoteOp, "15": SyndromeRetry, "16": SyndromeNotReady, "22": SyndromeRemoteAborted, "masked swap": OpMaskedSwap,
		"masked add": OpMaskedAdd, "UMR": OpUMR, "send queue's record": DoorbellSend}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if want := len(entries) + len(at) + len(is); len(lines) != want {
		t.Fatalf("%d lines, not %d:\n%s", len(lines), want, out)
	}
	for _, line := range lines {
		name, rest, _ := strings.Cut(line, " ")
		if name == "at" || name == "is" {
			i := strings.LastIndexByte(rest, ' ')
			theirs, err := strconv.Atoi(rest[i+1:])
			if err != nil {
				t.Fatal(err)
			}
			table := at
			if name == "is" {
				table = is
			}
			if ours, ok := table[rest[:i]]; !ok || ours != theirs {
				t.Errorf("%s %s: ours %d, theirs %d", name, rest[:i], ours, theirs)
			}
			continue
		}
		theirs, err := hex.DecodeString(rest)
		if err != nil {
			t.Fatal(err)
		}
		e := entries[name]
		if e == nil {
			t.Fatalf("no entry %s", name)
		}
		if e.Index == 0 {
			e.Index, e.Queue = 1, 2
		}
		if e.Opcode != OpNOP && e.Opcode != OpSend && e.RemoteKey == 0 {
			e.RemoteKey = 6
			if e.RemoteAddress == 0 {
				e.RemoteAddress = 5
			}
		}
		ours, err := e.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if string(ours) != string(theirs) {
			t.Errorf("%s:\nours   %x\ntheirs %x", name, ours, theirs)
		}
		ring := make([]byte, 16*BlockBytes)
		copy(ring, theirs)
		var parsed Entry
		if err := parsed.Parse(ring, 0, StrictReserved|StrictPadding); err != nil {
			t.Errorf("%s: what rdma-core writes: %v", name, err)
		}
	}
}
