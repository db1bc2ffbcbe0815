package daemon

import (
	"context"
	"errors"

	"github.com/lgpu/lgpu/policy/checkpoint"
	"github.com/lgpu/lgpu/policy/limits"
)

// release takes an lgpu's programs off their devices.
func (r *Releases) release(ctx context.Context, dir limits.Directory, show func(Release)) error {
	_, _, err := r.releaseFor(ctx, dir, nil, show)
	return err
}

// releaseFor is release for who goes on with it: the lgpu is this call's alone after that, until ended. keep changes what is
// noted of it, in the same write to the disk, so that at no moment it is noted as one that is only released. was says whether
// its programs had left their devices already.
func (r *Releases) releaseFor(
	ctx context.Context, dir limits.Directory, keep func(l *released, was bool), show func(Release),
) (l *released, was bool, err error) {
	already := func() (bool, error) {
		is := r.all[dir.ID]
		switch {
		case is == nil:
			return false, nil
		case is.Moving || is.busy:
			return true, onTheWay(dir.Path)
		}
		show(Release{Path: dir.Path, Processes: len(is.Processes)})
		if keep != nil {
			l, was, is.busy = is, true, true
			keep(l, was)
			return true, r.save()
		}
		return true, nil
	}
	r.mu.Lock()
	is, err := already()
	r.mu.Unlock()
	if is {
		return l, was, err
	}
	leaves, rooms, err := r.find(dir)
	if err != nil {
		return nil, false, releaseError(ErrInvalid, dir.Path, "", err)
	}
	if err := checkpoint.Admit(nil, r.hindrances(dir, leaves), rooms); err != nil {
		return nil, false, releaseError(ErrInvalid, dir.Path, "", err)
	}
	r.mu.Lock()
	if is, err := already(); is {
		r.mu.Unlock()
		return l, was, err
	}
	l = leaves
	r.all[dir.ID] = l
	err = r.save()
	r.mu.Unlock()
	if err == nil {
		m := r.move(l, dir.Path, false, show)
		err = m.run(ctx)
	}
	if err == nil && keep != nil {
		r.mu.Lock()
		keep(l, false)
		err = r.save()
		r.mu.Unlock()
	} else {
		r.ended(l, err == nil || errors.Is(err, errStuck))
		if err != nil {
			l = nil
		}
	}
	if err != nil {
		return l, false, releaseError(ErrBusy, dir.Path, "its programs run on", err)
	}
	r.daemon.journal.emit(Event{Kind: LgpuReleased, Path: dir.Path, ID: dir.ID, Text: dir.Path + " was released: its programs have left its devices"})
	r.daemon.residence.look()
	return l, false, nil
}
