// Command gen writes interpose/region.h from the types of package region.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"

	"github.com/lgpu/lgpu/region"
)

// types in the order in which C must see them.
var types = []any{
	region.DeviceLimits{}, region.Limits{}, region.Counter{}, region.Operation{}, region.Ledger{},
	region.Window{}, region.DeviceUsage{}, region.Client{}, region.Usage{}, region.Seat{}, region.Turn{},
}

var constants = []struct {
	name  string
	value uint64
}{
	{"MAGIC", region.Magic}, {"VERSION", uint64(region.Version)}, {"MAX_DEVICES", region.MaxDevices},
	{"MAX_CLIENTS", region.MaxClients}, {"WINDOWS", region.Windows}, {"WINDOW_NANOS", region.WindowNanos},
	{"LIMITS_BYTES", region.LimitsBytes}, {"HAMI_BASE", region.HAMiBase},
	{"CLIENT_LOCK_OFFSET", region.ClientLockOffset}, {"LAUNCHER_LOCK_OFFSET", region.LauncherLockOffset},
	{"NO_LIMIT", region.NoLimit}, {"FULL_COMPUTE", uint64(region.FullCompute)},
	{"CLIENT_FREE", uint64(region.ClientFree)}, {"CLIENT_LIVE", uint64(region.ClientLive)},
	{"TURN_MAGIC", region.TurnMagic}, {"MAX_SEATS", region.MaxSeats},
	{"SEAT_IDLE", uint64(region.SeatIdle)}, {"SEAT_WAITING", uint64(region.SeatWaiting)}, {"SEAT_GRANTED", uint64(region.SeatGranted)},
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen FILE")
	}
	if err := os.WriteFile(os.Args[1], header(), 0o644); err != nil {
		log.Fatal(err)
	}
}

func header() []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, `// Code generated from package region by go generate ./region; DO NOT EDIT.

// Layout of the region that an lgpu shares with its processes. Meaning and
// units of every field: region/layout.go.
#ifndef LGPU_REGION_H
#define LGPU_REGION_H

#include <stddef.h>
#include <stdint.h>

`)
	for _, c := range constants {
		fmt.Fprintf(&b, "#define LGPU_%s UINT64_C(0x%x)\n", c.name, c.value)
	}
	for _, t := range types {
		structure(&b, reflect.TypeOf(t))
	}
	fmt.Fprint(&b, "\n#endif\n")
	return b.Bytes()
}

func structure(b *bytes.Buffer, t reflect.Type) {
	name := cName(t)
	fmt.Fprintf(b, "\nstruct %s {\n", name)
	for i := range t.NumField() {
		f := t.Field(i)
		typ, dim := declarator(f.Type)
		field := snake(f.Name)
		if f.Name == "_" {
			field = fmt.Sprintf("reserved%d", i)
		}
		fmt.Fprintf(b, "\t%s %s%s;\n", typ, field, dim)
	}
	align := ""
	if name == "lgpu_counter" {
		align = " __attribute__((aligned(16)))"
	}
	fmt.Fprintf(b, "}%s;\n", align)
	fmt.Fprintf(b, "_Static_assert(sizeof(struct %s) == %d, \"%s\");\n", name, t.Size(), name)
	for i := range t.NumField() {
		if f := t.Field(i); f.Name != "_" {
			fmt.Fprintf(b, "_Static_assert(offsetof(struct %s, %s) == %d, \"%s\");\n", name, snake(f.Name), f.Offset, f.Name)
		}
	}
}

func declarator(t reflect.Type) (typ, dim string) {
	for t.Kind() == reflect.Array {
		dim += fmt.Sprintf("[%d]", t.Len())
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Uint8:
		return "uint8_t", dim
	case reflect.Uint32:
		return "uint32_t", dim
	case reflect.Uint64:
		return "uint64_t", dim
	case reflect.Int64:
		return "int64_t", dim
	case reflect.Struct:
		return "struct " + cName(t), dim
	}
	panic("region: no C type for " + t.String())
}

func cName(t reflect.Type) string { return "lgpu_" + snake(t.Name()) }

// snake turns DeviceLimits into device_limits and UUID into uuid.
func snake(s string) string {
	var out strings.Builder
	for i, r := range s {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && (s[i-1] >= 'a' && s[i-1] <= 'z') {
			out.WriteByte('_')
		}
		out.WriteRune(r)
	}
	return strings.ToLower(out.String())
}
