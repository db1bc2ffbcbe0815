package driver

import (
	"reflect"
	"strings"
	"testing"
)

// fields are those of the objects of a process. Each is in the image, or follows from what is, or is nothing that a
// process has between lock and unlock: a mutex, work under way.
var fields = []struct {
	object any
	names  string
}{
	{Process{}, "d pid name host visible unread printing initialised eager libraries spilled handles addresses " +
		"uva contexts primaries flags allocs regions reserved graphMemory pools defaults current " +
		"handlesOf used modes captures faults parts graphHigh pages destructors quiet closed gone"},
	{context{}, "handle id p dev primary refs flags fault space channel units cost stacks arena peers legacy " +
		"threads streams modules live room output prints limits cacheConfig"},
	{stream{}, "handle id ctx flags priority tail attrs capture deps"},
	{event{}, "handle ctx flags point exported foreign capture deps"},
	{point{}, "work recorded"},
	{pool{}, "handle p dev arena parked threshold reuse usedHigh resvHigh shareable source builtin destroyed"},
	{arena{}, "p dev ctx access keep limit chunks reserved used"},
	{chunk{}, "region phys free used"},
	{allocation{}, "typ base size ctx dev id flags syncOps arena chunk region host phys pool freed readMostly " +
		"preferred prefetch accessedBy exported"},
	{physical{}, "d owner dev frames refs prop"},
	{physicalHandle{}, "ph count"},
	{properties{}, "handleTypes compression rdma usage"},
	{region{}, "base size store offset ctx access"},
	{code{}, "units options size parsed"},
	{module{}, "handle ctx code parsed image memory globals functions library"},
	{function{}, "handle module kernel maxDynamic carveout"},
	{library{}, "handle code parsed modules kernels"},
	{kernel{}, "handle library kernel maxDynamic"},
	{array{}, "handle ctx desc alloc base pitch rows slices mip"},
	{mipmap{}, "handle ctx desc alloc levels"},
	{graph{}, "handle p nodes parent objects"},
	{node{}, "handle graph op in out disabled origin"},
	{exec{}, "handle p graph flags last"},
	{capture{}, "id p graph origin mode thread streams invalid over own"},
	{userObject{}, "handle ptr destroy refs"},
	{linker{}, "options units bytes image"},
	{part{}, "named units count"},
	{kernelOp{}, "fn grid block shared params cooperative priority stream attrs kern"},
	{box{}, "dst src width height depth params ctx"},
	{side{}, "addr pitch slice pageable device buf"},
	{fill{}, "ctx params"},
	{hostFn{}, "params callback stream"},
	{memops{}, "ctx list raw flag"},
	{child{}, "graph"},
	{allocNode{}, "p dev addr size props alloc uses"},
	{freeNode{}, "p addr from"},
	{record{}, "point"},
	{waitPoint{}, "point"},
	{table{}, "objects next"},
	{addresses{}, "free next"},
}

// TestFieldsAreKnown: who adds a field to an object of a process decides whether a checkpoint has to carry it, and then
// writes it down here.
func TestFieldsAreKnown(t *testing.T) {
	for _, f := range fields {
		var have []string
		for typ, i := reflect.TypeOf(f.object), 0; i < typ.NumField(); i++ {
			have = append(have, typ.Field(i).Name)
		}
		if got := strings.Join(have, " "); got != f.names {
			t.Errorf("%T has the fields\n%s\nand image.go was written for\n%s", f.object, got, f.names)
		}
	}
}
