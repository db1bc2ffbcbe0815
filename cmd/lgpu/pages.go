package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/lgpu/lgpu/checkpoint/criu"
	"github.com/lgpu/lgpu/checkpoint/image"
	"github.com/lgpu/lgpu/internal/meminfo"
)

// pagesStream is the name of the stream with memory of a program's processes.
func pagesStream(p *criu.Pages) string { return "processes/" + p.Name }

// writePages has the memory that CRIU has written to plain files, or that is still the processes', become streams of an image,
// which share what has not changed with other images. started is told how many bytes there are.
func writePages(ctx context.Context, w *image.Writer, started func(bytes int64)) error {
	all, err := criu.PagesIn(w.Files(), w.ChunkSize())
	if err != nil {
		return err
	}
	total := int64(0)
	for _, p := range all {
		total += p.Size
	}
	started(total)
	for _, p := range all {
		if err := p.Open(); err != nil {
			return err
		}
		err := w.Copy(ctx, pagesStream(p), p.Size, p)
		if err := errors.Join(err, p.Remove()); err != nil {
			return err
		}
	}
	return nil
}

// readPages makes CRIU's files with memory, in a folder that has its lists, from the streams of an image, but for what
// fillProcesses writes to the processes themselves. What it returns is to be closed when CRIU has read them. They are in memory
// where there is room for them and for the program beside them: CRIU reads nothing that has to come to a disk before, and leaves
// nothing there.
func readPages(ctx context.Context, i *image.Image, dir string, progress func(bytes int64)) (all []*criu.Pages, err error) {
	if all, err = criu.PagesIn(dir, i.ChunkSize); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closePages(all))
		}
	}()
	if err := criu.TakeOut(dir, all); err != nil {
		return all, err
	}
	to, total := map[string]io.WriterAt{}, int64(0)
	for _, p := range all {
		if s := i.Stream(pagesStream(p)); s == nil || s.Size != p.Size {
			return all, fmt.Errorf("what it says of its program: it has no memory %s of %d bytes", pagesStream(p), p.Size)
		}
		to[pagesStream(p)] = p
		total += p.Length()
	}
	room := meminfo.Read().Available
	for _, p := range all {
		if err := p.Make(uint64(total) < room/2); err != nil {
			return all, err
		}
	}
	return all, i.Load(ctx, to, progress)
}

// fillProcesses writes to processes what CRIU has not, once all of them are there and before they run. It says whether there was
// any.
func fillProcesses(ctx context.Context, i *image.Image, all []*criu.Pages, progress func(bytes int64)) (filled bool, err error) {
	to := map[string]io.WriterAt{}
	for _, p := range all {
		memory, err := p.Process()
		if err != nil {
			return false, err
		}
		if memory != nil {
			defer memory.Close()
			to[pagesStream(p)] = memory
		}
	}
	return len(to) > 0, i.Load(ctx, to, progress)
}

func closePages(all []*criu.Pages) error {
	var err error
	for _, p := range all {
		err = errors.Join(err, p.Close())
	}
	return err
}
