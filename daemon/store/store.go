// Package store keeps what must survive the daemon in one file: the tree of limits, and which processes used which
// lgpus.
//
//	s, err := store.Open("/var/lib/lgpu/state.db")
//	state := s.State()
//	err = s.SaveTree(t.State())
//
// # Promises
//
// After a Save or Delete has returned without an error, its change survives any crash; a crash in the middle of one
// leaves the state before it or after it. Open detects a file that was damaged otherwise (a truncated copy, a bad
// disk), moves it aside and says so: it neither guesses nor starts with an empty state by itself. A file that a later
// version has written is read if it says nothing that this one does not know, and else refused and left as it is, since
// what is left out would be lost at the next write. Records of a kind that this version does not know are kept. A disk that
// is full keeps nobody from opening the file: every Save fails until there is room.
//
// # Format
//
// A bbolt database with one bucket of records, each a checksum followed by a JSON text. The record "seal" has the
// number of the others and the sum of their checksums, so that none can be missing. Before bbolt maps the file into
// memory, where damage would end the process, every page is checked (verify.go).
package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Schema is the version of the format that this package writes.
const Schema = 1

// Errors that Open wraps, beside those of the file system.
var (
	// ErrDamaged: the file is not what was written. It is a *DamagedError.
	ErrDamaged = errors.New("damaged")
	// ErrNewer: the file was written by a later version of lgpu.
	ErrNewer = errors.New("written by a later version of lgpu")
	// ErrInUse: another process has the file open.
	ErrInUse = errors.New("in use by another process")
)

// DamagedError says that a state file was unreadable and is now at Backup.
type DamagedError struct {
	Path, Backup string
	Cause        error
}

// Error says what happened, and what to do.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("state file %s is damaged (%v) and was moved to %s; start again to begin without groups, limits "+
		"and named lgpus, or first put a good copy in its place", e.Path, e.Cause, e.Backup)
}

// Is makes errors.Is(err, ErrDamaged) true.
func (e *DamagedError) Is(target error) bool { return target == ErrDamaged }

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Cause }

// State is everything that is in a file.
type State struct {
	Starts uint64       // how often the file was opened, this time included
	Tree   limits.State // zero in a new file
	Lgpus  []Lgpu       // by ID
	Energy []Energy     // by ID
}

// Lgpu is what the daemon knows of an lgpu beyond the tree.
type Lgpu struct {
	ID      uint64    `json:"id"` // of its node in the tree
	Created time.Time `json:"created"`
	// Sim is the shape of the software GPU it is on, empty for the machine's own devices.
	Sim string `json:"sim,omitempty"`
	// Devices are those it has, in the order in which its programs see them, as UUIDs; empty until it is first used.
	Devices []gpu.UUID `json:"devices,omitempty"`
	// Spatial: it uses its device in spatial mode.
	Spatial bool `json:"spatial,omitempty"`
	// Active: it had launchers or clients.
	Active    bool       `json:"active,omitempty"`
	Launchers []Launcher `json:"launchers,omitempty"`
}

// Launcher is a process that had a lease of an lgpu. Start counts from the boot named Boot.
type Launcher struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
	UID   uint32 `json:"uid"`
}

// Energy is what a directory of the tree itself, or nobody (ID 0), has used of devices.
type Energy struct {
	ID      uint64         `json:"id"`
	Devices []DeviceEnergy `json:"devices"`
}

// DeviceEnergy is what was used of one device.
type DeviceEnergy struct {
	Device gpu.UUID `json:"device"`
	Energy uint64   `json:"mj"`                // millijoules
	Idle   uint32   `json:"idle_mw,omitempty"` // what the device draws without work, milliwatts; in nobody's record
}

// Store is an open state file. Its methods may be called by any number of goroutines.
type Store struct {
	path string

	mu      sync.Mutex
	db      *bbolt.DB         // guarded by mu; nil once closed
	texts   map[string]string // guarded by mu; every record but the seal
	tried   time.Time         // guarded by mu; when something was written last, or could not be
	initial State

	trouble atomic.Pointer[error] // why nothing could be written last
}

// Keys of records.
const (
	bucket     = "lgpu"
	sealKey    = "seal"
	metaKey    = "meta"
	treeKey    = "tree"
	nodePrefix = "node/"
	lgpuPrefix = "lgpu/"
	// Not in the file of a daemon that has seen no counter of energy.
	energyPrefix = "energy/"
)

// meta is the record of the file itself.
type meta struct {
	Schema int    `json:"schema"`
	Starts uint64 `json:"starts"`
}

// seal is the record about all others.
type seal struct {
	Records int    `json:"records"`
	Sum     uint32 `json:"sum"` // of their checksums, modulo 2^32
}

// head is the record of the tree without its directories.
type head struct {
	Version int    `json:"version"`
	LastID  uint64 `json:"last_id"`
}

// Open opens the state file at path, or creates it. Errors wrap ErrDamaged, ErrNewer, ErrInUse, or are the file
// system's.
func Open(path string) (*Store, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := create(path); err != nil {
			return nil, fmt.Errorf("make the state file %s: %w", path, err)
		}
	case err != nil:
		return nil, fmt.Errorf("state file: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("state file %s is not a regular file", path)
	}
	s := &Store{path: path, texts: map[string]string{}}
	err = s.open()
	if errors.Is(err, ErrDamaged) {
		return nil, setAside(path, err)
	}
	if err == nil {
		if err = s.start(); Full(err) {
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state file %s: %w", path, err), s.Close())
	}
	return s, nil
}

// damaged marks an error as one of the file's content.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// setAside moves a damaged file away and returns the error that says so.
func setAside(path string, cause error) error {
	stamp := time.Now().UTC().Format("20060102T150405Z")
	backup := fmt.Sprintf("%s.damaged-%s", path, stamp)
	for n := 2; ; n++ {
		// A link fails where a file of that name exists, which a rename would replace.
		err := os.Link(path, backup)
		if errors.Is(err, fs.ErrExist) {
			backup = fmt.Sprintf("%s.damaged-%s-%d", path, stamp, n)
			continue
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("state file %s is damaged (%w) and cannot be moved aside: %w", path, cause, err)
		}
		break
	}
	if inner := errors.Unwrap(cause); inner != nil {
		cause = inner
	}
	return &DamagedError{Path: path, Backup: backup, Cause: cause}
}

// options of bbolt. The list of free pages is rebuilt at every start, so a damaged one does no harm.
func options() *bbolt.Options {
	return &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}
}

// create creates an empty state file, which gets its name once it is complete.
func create(path string) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(fresh, 0o600, options())
	if err != nil {
		return err
	}
	s := &Store{path: fresh, db: db, texts: map[string]string{}}
	err = s.update(nil, nil)
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	// Not over a file that has appeared meanwhile.
	if err := os.Link(fresh, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Remove(fresh); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// open checks the file and reads the state.
func (s *Store) open() (err error) {
	if err := verifyFile(s.path); err != nil {
		return err
	}
	// Damage that verify does not know may still make bbolt panic.
	defer func() {
		if r := recover(); r != nil {
			err = damaged("%v", r)
		}
	}()
	s.db, err = bbolt.Open(s.path, 0o600, options())
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return ErrInUse
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err,
		berrors.ErrVersionMismatch):
		return damaged("%w", err)
	case err != nil:
		return err
	}
	if err := s.db.View(s.read); err != nil {
		return err
	}
	s.initial, err = s.decode()
	return err
}

// read reads the records and compares them with the seal.
func (s *Store) read(tx *bbolt.Tx) error {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return damaged("it has no records")
	}
	var sealed seal
	err := b.ForEach(func(k, v []byte) error {
		if len(v) < 4 {
			return damaged("record %q has %d bytes", k, len(v))
		}
		key, text, sum := string(k), v[4:], binary.LittleEndian.Uint32(v)
		if checksum(key, text) != sum {
			return damaged("record %q has a wrong checksum", k)
		}
		if key == sealKey {
			return unmarshal(key, text, &sealed)
		}
		s.texts[key] = string(text)
		return nil
	})
	if err != nil {
		return err
	}
	if have := sealOf(s.texts); have != sealed {
		return damaged("there are %d records (sum %#x) where %d were written (sum %#x)", have.Records, have.Sum,
			sealed.Records, sealed.Sum)
	}
	return nil
}

// decode makes a state of the records.
func (s *Store) decode() (State, error) {
	var m meta
	if err := unmarshal(metaKey, []byte(s.texts[metaKey]), &m); err != nil {
		return State{}, err
	}
	if m.Schema > Schema {
		return State{}, fmt.Errorf("%w: schema %d, this one knows %d; %s", ErrNewer, m.Schema, Schema, newerHint)
	}
	state := State{Starts: m.Starts}
	var h head
	if text, ok := s.texts[treeKey]; ok {
		if err := unmarshal(treeKey, []byte(text), &h); err != nil {
			return State{}, err
		}
		state.Tree.Version, state.Tree.LastID = h.Version, h.LastID
	}
	for key, text := range s.texts {
		if strings.HasPrefix(key, nodePrefix) {
			var n limits.DirectoryState
			if err := unmarshal(key, []byte(text), &n); err != nil {
				return State{}, err
			}
			state.Tree.Directories = append(state.Tree.Directories, n)
		}
		if strings.HasPrefix(key, lgpuPrefix) {
			var l Lgpu
			if err := unmarshal(key, []byte(text), &l); err != nil {
				return State{}, err
			}
			state.Lgpus = append(state.Lgpus, l)
		}
		if strings.HasPrefix(key, energyPrefix) {
			var e Energy
			if err := unmarshal(key, []byte(text), &e); err != nil {
				return State{}, err
			}
			state.Energy = append(state.Energy, e)
		}
	}
	slices.SortFunc(state.Tree.Directories, func(a, b limits.DirectoryState) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(state.Lgpus, func(a, b Lgpu) int { return strings.Compare(lgpuKey(a.ID), lgpuKey(b.ID)) })
	slices.SortFunc(state.Energy, func(a, b Energy) int { return cmp.Compare(a.ID, b.ID) })
	return state, nil
}

// unmarshal reads a record whose checksum is right: what it says and is not understood, a later version has written. To
// leave that out would lose it at the next write, and a limit with it.
func unmarshal(key string, text []byte, to any) error {
	if !json.Valid(text) {
		return damaged("record %q is not JSON", key)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("%w: record %q is more than this one knows (%s); %s", ErrNewer, key,
			strings.TrimPrefix(err.Error(), "json: "), newerHint)
	}
	return nil
}

// newerHint is what to do about a file of a later version.
const newerHint = "use that version, or put back the copy from before it, or move the file away"

// start counts this opening, in the file with the first write that succeeds.
func (s *Store) start() error {
	s.initial.Starts++
	return s.update(nil, nil)
}

// Full reports whether an error says that a disk is full, or all of it used that one may use.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Trouble returns why nothing can be written to the file, nil if the last write succeeded. After one that failed it tries
// again, at most once a second.
func (s *Store) Trouble() error {
	trouble := s.trouble.Load()
	if trouble == nil {
		return nil
	}
	if s.mu.TryLock() { // a write that takes long says itself how it ends
		defer s.mu.Unlock()
		if s.db != nil && time.Since(s.tried) > time.Second && s.write(s.texts, nil) == nil {
			return nil
		}
	}
	return *trouble
}

// State returns what was in the file when it was opened.
func (s *Store) State() State { return s.initial }

// SaveTree replaces the tree and, in the same write, adds or replaces the records of some lgpus.
func (s *Store) SaveTree(t limits.State, with ...Lgpu) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	put := map[string]any{treeKey: head{Version: t.Version, LastID: t.LastID}}
	for _, l := range with {
		put[lgpuKey(l.ID)] = l
	}
	for _, n := range t.Directories {
		put[fmt.Sprintf("%s%016x", nodePrefix, n.ID)] = n
	}
	var gone []string
	for key := range s.texts {
		if _, stays := put[key]; !stays && strings.HasPrefix(key, nodePrefix) {
			gone = append(gone, key)
		}
	}
	return s.updateLocked(put, gone)
}

func lgpuKey(id uint64) string { return fmt.Sprintf("%s%016x", lgpuPrefix, id) }

// SaveLgpu adds or replaces the record of one lgpu.
func (s *Store) SaveLgpu(l Lgpu) error { return s.update(map[string]any{lgpuKey(l.ID): l}, nil) }

// DeleteLgpu removes the record of one lgpu, if there is one.
func (s *Store) DeleteLgpu(id uint64) error { return s.update(nil, []string{lgpuKey(id)}) }

// SaveEnergy adds or replaces records of energy, all or none; those without devices are removed.
func (s *Store) SaveEnergy(records []Energy) error {
	put, gone := map[string]any{}, []string(nil)
	for _, e := range records {
		key := fmt.Sprintf("%s%016x", energyPrefix, e.ID)
		if len(e.Devices) == 0 {
			gone = append(gone, key)
		} else {
			put[key] = e
		}
	}
	return s.update(put, gone)
}

// Close closes the file. Every later Save fails.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	if err := db.Close(); err != nil {
		return fmt.Errorf("close the state file: %w", err)
	}
	return nil
}

func (s *Store) update(put map[string]any, remove []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updateLocked(put, remove)
}

// updateLocked writes the records of put that differ from the file's, and the seal, in one transaction; and that of the
// file itself, if it could not be written before. Called with s.mu locked.
func (s *Store) updateLocked(put map[string]any, remove []string) error {
	if s.db == nil {
		return fmt.Errorf("state file: %w", fs.ErrClosed)
	}
	next := maps.Clone(s.texts)
	var changed []string
	all := map[string]any{metaKey: meta{Schema: Schema, Starts: s.initial.Starts}}
	maps.Copy(all, put)
	for key, value := range all {
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("state record %s: %w", key, err)
		}
		if old, have := next[key]; !have || old != string(text) {
			next[key] = string(text)
			changed = append(changed, key)
		}
	}
	for _, key := range remove {
		if _, have := next[key]; have {
			delete(next, key)
			changed = append(changed, key)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	slices.Sort(changed) // neighbours lie on the same pages
	if err := s.write(next, changed); err != nil {
		return err
	}
	s.texts = next
	return nil
}

// write writes the records of some keys, and the seal of all records. Called with s.mu locked.
func (s *Store) write(next map[string]string, changed []string) error {
	sealed, err := json.Marshal(sealOf(next))
	if err != nil {
		return fmt.Errorf("state record %s: %w", sealKey, err)
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		for _, key := range changed {
			if text, stays := next[key]; !stays {
				err = b.Delete([]byte(key))
			} else {
				err = b.Put([]byte(key), record(key, []byte(text)))
			}
			if err != nil {
				return err
			}
		}
		return b.Put([]byte(sealKey), record(sealKey, sealed))
	})
	s.tried = time.Now()
	if err != nil {
		var of *fs.PathError
		if errors.As(err, &of) && of.Path == s.path {
			err = of.Err // the path is said here
		}
		err = fmt.Errorf("write the state file %s: %w", s.path, err)
		s.trouble.Store(&err)
		return err
	}
	s.trouble.Store(nil)
	return nil
}

func sealOf(texts map[string]string) seal {
	var sealed seal
	for key, text := range texts {
		sealed.Records++
		sealed.Sum += checksum(key, []byte(text))
	}
	return sealed
}

// record is a checksum followed by its text.
func record(key string, text []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, checksum(key, text)), text...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key string, text []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, text)
}
