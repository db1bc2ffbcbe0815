package doctor

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/lgpu/lgpu/checkpoint/criu"
)

// CRIU is what writes a program's processes to disk.
type CRIU struct {
	Path     string
	Version  criu.Version
	Err      error // of finding it and asking it who it is; wraps criu.ErrMissing where there is none
	Check    error // of trying what it needs of the kernel, which root alone can
	Features criu.Features
}

// lookCRIU finds out what CRIU can do here.
func lookCRIU(ctx context.Context) CRIU {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p, err := criu.Find()
	c := CRIU{Path: p.Path, Err: err}
	if err == nil {
		c.Version, c.Err = p.Version(ctx)
	}
	if c.Err == nil && c.Version.Enough() && os.Geteuid() == 0 {
		if c.Check = p.Check(ctx); c.Check == nil {
			c.Features, c.Check = p.Features(ctx)
		}
	}
	return c
}

// criu says whether programs can be written to disk.
func (e *examination) criu() {
	const check = "criu"
	const follows = "; it is for images of programs on disk, all else works without"
	switch c := &e.m.CRIU; {
	case errors.Is(c.Err, criu.ErrMissing):
		e.add(Warn, check, "criu is not installed: programs cannot be written to disk", "install criu 4.1 or newer, or name it with LGPU_CRIU"+follows)
	case c.Err != nil:
		e.add(Warn, check, c.Path+" cannot be used: "+c.Err.Error(), "criu check says more"+follows)
	case !c.Version.Enough():
		e.add(Warn, check, c.Path+" is version "+c.Version.String()+", which is too old", "install criu 4.1 or newer, or name it with LGPU_CRIU"+follows)
	case c.Check != nil:
		e.add(Warn, check, c.Path+" "+c.Version.String()+" lacks something of the kernel: "+c.Check.Error(),
			"criu check says more; in a container, --privileged"+follows)
	case e.m.User != 0:
		e.ok(check, "%s %v; it needs the rights of root, and was not tried", c.Path, c.Version)
	default:
		e.ok(check, "%s %v%s", c.Path, c.Version, lacking(c.Features))
	}
}

// lacking says what this kernel does not let CRIU do, if there is something.
func lacking(f criu.Features) string {
	var all []string
	for _, l := range []struct {
		has  bool
		text string
	}{
		{f.MemoryTracking, "dumps of what has changed alone"}, {f.LazyPages, "restores that load memory when it is touched"},
		{f.Sockets, "images of programs with TCP or UDP sockets, which CRIU 4.2 makes"},
	} {
		if !l.has {
			all = append(all, l.text)
		}
	}
	if all == nil {
		return ""
	}
	return "; not with this kernel: " + strings.Join(all, ", ")
}
