package daemon

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
	simulator "github.com/lgpu/lgpu/sim"
)

// CreateSpec describes a persistent group or lgpu.
type CreateSpec struct {
	Path    string
	Sim     string              // shape of the software GPU that it is for; empty for the machine's own devices
	Devices []gpu.UUID          // those it has, in the order in which programs see them; none is all, until it is used
	Writes  []limits.Assignment // written to its files in the same transaction
	By      limits.Author       // who asks, and owns it
}

// Create makes a persistent directory of the tree: an lgpu as soon as it is used, a group as soon as it has children.
// Its state is on disk when Create returns. An error wraps a *limits.Error, ErrInvalid or ErrClosed.
func (n *Daemon) Create(ctx context.Context, spec CreateSpec) (Directory, error) {
	if err := n.presence.left(); err != nil {
		return Directory{}, err
	}
	if err := n.places.settle(spec.By, path.Dir(spec.Path)); err != nil {
		return Directory{}, err
	}
	// What she may not make is refused before a software GPU is started for it.
	if err := n.tree.May(spec.By, limits.Access{Action: limits.ActionCreate, Path: spec.Path}); err != nil {
		return Directory{}, err
	}
	var sim *simUse
	if spec.Sim != "" {
		shape, err := simulator.ParseShape(spec.Sim)
		if err != nil {
			return Directory{}, simError(err)
		}
		if err := n.places.sim(spec.By, shape.String()); err != nil {
			return Directory{}, err
		}
		if sim, err = n.inventory.useSim(spec.Sim); err != nil {
			return Directory{}, err
		}
		spec.Sim = sim.shape
	}
	if err := n.inventory.has(spec.Sim, spec.Devices); err != nil {
		sim.close()
		return Directory{}, err
	}
	dir, err := n.create(spec, sim)
	if err != nil {
		sim.close()
		return Directory{}, err
	}
	n.containers.sync()
	for _, s := range n.Snapshot().Directories {
		if s.ID == dir.ID {
			return s, nil
		}
	}
	return Directory{}, fmt.Errorf("%s: %w: it has been removed already", spec.Path, ErrNotFound)
}

func (n *Daemon) create(spec CreateSpec, sim *simUse) (limits.Directory, error) {
	n.lgpus.life.Lock()
	defer n.lgpus.life.Unlock()
	wanted := limits.CreateSpec{Path: spec.Path, UID: spec.By.UID, GID: spec.By.GID, Writes: spec.Writes}
	record := store.Lgpu{Created: time.Now(), Sim: spec.Sim, Devices: spec.Devices}
	bound := spec.Sim != "" || len(spec.Devices) > 0
	if bound {
		wanted.Note = record // kept by commit
	}
	dir, err := n.tree.By(spec.By).Create(wanted)
	if err != nil || !bound {
		return dir, err
	}
	record.ID = dir.ID
	l := restored(record)
	l.sim = sim
	n.lgpus.add(l)
	return dir, nil
}

// Remove removes the group or lgpu at path. An error wraps a *limits.Error: ENOENT, ENOTEMPTY with children, EBUSY
// while it is in use.
func (n *Daemon) Remove(ctx context.Context, by limits.Author, path string) error {
	err := n.tree.By(by).Rmdir(path)
	n.containers.sync()
	return err
}

// has returns why an lgpu cannot be created with these devices: each is to be there, once, and of the software GPU's shape.
func (v *inventory) has(shape string, devices []gpu.UUID) error {
	there := v.usable(shape)
	usable := uuidsOf(there)
	named := slices.DeleteFunc(there, func(d gpu.Device) bool { return !slices.Contains(devices, d.UUID) })
	if err := gpu.Together(named); err != nil {
		return devicesError(ErrInvalid, "name one of them", "%w", err)
	}
	for i, uuid := range devices {
		invalid := Error{Class: ErrInvalid, Field: "devices", Value: uuid.String(), Remedy: "lgpu devices lists those there are"}
		switch {
		case !slices.Contains(usable, uuid):
			invalid.Reason, invalid.Cause = "there is no such device that programs can use", ErrNoDevice
		case slices.Contains(devices[:i], uuid):
			invalid.Reason = "it is named twice"
		default:
			continue
		}
		return &invalid
	}
	return nil
}
