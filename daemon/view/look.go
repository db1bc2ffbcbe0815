package view

import (
	"path"
	"strings"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/policy/limits"
)

// Look is what somebody sees at one moment, of what the daemon shows. What is hidden is as if it were not there.
type Look struct {
	all    bool // the rest has no meaning
	totals bool
	by     limits.Author
	tree   *limits.Tree
	sights map[uint64]limits.Sight
}

// Everything is the look of who sees everything.
var Everything = Look{all: true}

// By returns what somebody sees now. It costs nothing for who sees everything.
func By(t *limits.Tree, by limits.Author) Look {
	rights := t.Rights()
	if rights.SeesAll(by) {
		return Everything
	}
	return Look{totals: rights.Others == limits.OthersTotals, by: by, tree: t, sights: t.Sights(by)}
}

// All reports whether it is everything.
func (l Look) All() bool { return l.all }

// Snapshot is what of a snapshot is seen. The snapshot itself stays as it is.
func (l Look) Snapshot(s daemon.Snapshot) daemon.Snapshot {
	if l.all {
		return s
	}
	directories, devices := s.Directories, s.Devices
	s.Directories, s.Devices = nil, make([]daemon.Device, 0, len(devices))
	for _, d := range directories {
		switch l.sights[d.ID] {
		case limits.Whole:
			s.Directories = append(s.Directories, d)
		case limits.Frame:
			s.Directories = append(s.Directories, l.frame(d))
		}
	}
	for _, d := range devices {
		s.Devices = append(s.Devices, l.device(d))
	}
	return s
}

// frame is a directory of others, with something of hers below.
func (l Look) frame(d daemon.Directory) daemon.Directory {
	d.Clients, d.Launchers, d.Cgroups, d.Gang = nil, nil, nil, ""
	if l.totals {
		return d
	}
	d.State, d.HostUsed = daemon.StateIdle, 0
	uses := d.Devices
	d.Devices = nil
	for _, u := range uses {
		d.Devices = append(d.Devices, daemon.DeviceUse{Device: u.Device, Key: u.Key, Requested: u.Requested,
			Effective: u.Effective, Named: u.Named, State: daemon.StateIdle})
	}
	return d
}

// device is a device that others use, too.
func (l Look) device(d daemon.Device) daemon.Device {
	processes := d.Processes
	d.Processes = nil
	for _, p := range processes {
		if p.UID == l.by.UID || p.Path != "" && l.tree.Sight(l.by, p.Path) == limits.Whole {
			d.Processes = append(d.Processes, p)
		}
	}
	if !l.totals {
		d.MemoryUsed, d.Utilisation, d.MemoryUtilisation = 0, -1, -1
		d.Power, d.Energy, d.Temperature, d.OtherEnergy = nil, nil, nil, nil // they rise with what others do
	}
	return d
}

// Event reports whether an event is seen: what she did, what happened to hers, and to the daemon and the devices of all.
func (l Look) Event(e daemon.Event) bool {
	switch {
	case l.all || e.PID != 0 && e.UID == l.by.UID || e.By != nil && e.By.UID == l.by.UID:
		return true
	case e.Path != "":
		return l.saw(e)
	}
	// Who did something or whose process it is about is not hers.
	return e.PID == 0 && e.By == nil || strings.HasPrefix(string(e.Kind), "daemon.")
}

// saw reports whether she sees the directory that an event is about. If another is at its path now, the one above says,
// so that whoever is given a path does not read what was done there before.
func (l Look) saw(e daemon.Event) bool {
	at := e.Path
	now, err := l.tree.Directory(at)
	if err == nil && e.ID != 0 && now.ID != e.ID {
		at = path.Dir(at)
	}
	return l.tree.Sight(l.by, at) == limits.Whole
}

// Turns is what of some turns, and of the number of those lost, is seen; nothing is ok=false.
func (l Look) Turns(turns []daemon.Slice, lost uint64) (seen []daemon.Slice, missed uint64, ok bool) {
	if l.all {
		return turns, lost, true
	}
	for _, t := range turns {
		if t, is := l.Slice(t); is {
			seen = append(seen, t)
		}
	}
	if !l.totals {
		lost = 0 // they may all be of others
	}
	return seen, lost, len(seen) > 0 || lost > 0
}

// Lgpu reports whether the lgpu with an ID is seen.
func (l Look) Lgpu(id uint64) bool { return l.all || l.sights[id] == limits.Whole }

// Slice is what of a slice is seen, and whether anything is: whose one of others is, is not.
func (l Look) Slice(s daemon.Slice) (daemon.Slice, bool) {
	if l.Lgpu(s.ID) {
		return s, true
	}
	s.Path, s.ID, s.Used = "", 0, 0
	return s, l.totals
}
