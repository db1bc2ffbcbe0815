package view

import (
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/policy/limits"
)

const alice, bob = 1001, 1002

// governed is a tree in which /users/alice and /users/bob belong to two users who see so much of each other.
func governed(t *testing.T, others limits.Others) *limits.Tree {
	t.Helper()
	tree := limits.New(limits.Options{Rights: limits.Rights{Others: others}})
	for _, d := range []struct {
		path string
		uid  uint32
	}{{"/users", 0}, {"/users/alice", alice}, {"/users/bob", bob}} {
		if err := tree.Mkdir(d.path, d.uid, 0); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

// What a device draws says what others do, as its utilisation does.
func TestDeviceUnderNone(t *testing.T) {
	power, energy, heat := uint32(700_000), uint64(1), int32(80)
	s := daemon.Snapshot{Devices: []daemon.Device{{Power: &power, Energy: &energy, OtherEnergy: &energy, Temperature: &heat,
		Utilisation: 90, MemoryUsed: 1}}}
	for _, others := range []limits.Others{limits.OthersTotals, limits.OthersNone} {
		d := By(governed(t, others), limits.Author{UID: alice}).Snapshot(s).Devices[0]
		shown := d.Power != nil || d.Energy != nil || d.OtherEnergy != nil || d.Temperature != nil || d.Utilisation >= 0 ||
			d.MemoryUsed > 0
		if shown != (others == limits.OthersTotals) {
			t.Errorf("%s: %+v", others, d)
		}
	}
}

// Events about processes of others are not seen either where they are about no directory.
func TestEventsOfStrangers(t *testing.T) {
	look := By(governed(t, limits.OthersNone), limits.Author{UID: alice})
	for _, kind := range []daemon.Kind{daemon.ClientRefused, daemon.PoliceStranger} {
		if look.Event(daemon.Event{Kind: kind, By: &daemon.Author{UID: bob, PID: 5}, Text: "process 5 (secret)"}) {
			t.Errorf("%s of another is seen", kind)
		}
		if !look.Event(daemon.Event{Kind: kind, By: &daemon.Author{UID: alice, PID: 5}}) {
			t.Errorf("%s of her own is not seen", kind)
		}
	}
	for _, kind := range []daemon.Kind{daemon.DaemonStarted, daemon.DeviceFault} {
		if !look.Event(daemon.Event{Kind: kind}) {
			t.Errorf("%s is not seen", kind)
		}
	}
}

// Who is given a path does not see what others did there when something else was at it.
func TestEventsOfFormerOwners(t *testing.T) {
	tree := governed(t, limits.OthersNone)
	id := func(path string) uint64 {
		d, err := tree.Directory(path)
		if err != nil {
			t.Fatal(err)
		}
		return d.ID
	}
	if err := tree.Mkdir("/team", bob, 0); err != nil {
		t.Fatal(err)
	}
	before := daemon.Event{Kind: daemon.LimitChanged, Path: "/team", ID: id("/team")}
	if err := tree.Rmdir("/team"); err != nil {
		t.Fatal(err)
	}
	if err := tree.Mkdir("/team", alice, 0); err != nil {
		t.Fatal(err)
	}
	look := By(tree, limits.Author{UID: alice})
	if look.Event(before) {
		t.Error("she sees what another did at the path")
	}
	if !look.Event(daemon.Event{Kind: daemon.LimitChanged, Path: "/team", ID: id("/team")}) {
		t.Error("she does not see what is done now")
	}
}

// Of turns of others not even the number is seen.
func TestTurnsUnderNone(t *testing.T) {
	tree := governed(t, limits.OthersNone)
	look := By(tree, limits.Author{UID: alice})
	theirs, err := tree.Directory("/users/bob")
	if err != nil {
		t.Fatal(err)
	}
	mine, err := tree.Directory("/users/alice")
	if err != nil {
		t.Fatal(err)
	}
	if seen, lost, ok := look.Turns([]daemon.Slice{{ID: theirs.ID, Used: time.Second}}, 7); ok || lost > 0 || len(seen) > 0 {
		t.Errorf("turns of others: %v, %d lost, %t", seen, lost, ok)
	}
	if seen, _, ok := look.Turns([]daemon.Slice{{ID: theirs.ID}, {ID: mine.ID}}, 0); !ok || len(seen) != 1 {
		t.Errorf("her own: %v, %t", seen, ok)
	}
}
