package image

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"lukechampine.com/blake3"
)

// format and version begin each manifest. An image of another version is refused: a change of what is on disk needs a new one.
const (
	format  = "lgpu image"
	version = 1
)

// Hash is the BLAKE3 hash of the contents of a chunk or file. Its text is hexadecimal.
type Hash [32]byte

func sum(data []byte) Hash { return blake3.Sum256(data) }

// String returns 64 digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// short is enough to find a chunk by.
func (h Hash) short() string { return h.String()[:12] }

// MarshalText writes what String returns.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("hash %.80q: it does not have %d digits", text, hex.EncodedLen(len(h)))
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// Manifest says what is in an image. Its text is JSON, in one form only: a text that lgpu would write differently is refused.
type Manifest struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Created time.Time `json:"created"` // in UTC
	About
	ChunkSize int      `json:"chunk_size"` // bytes; the last chunk of a stream may be shorter
	Streams   []Stream `json:"streams"`    // by name
	Files     []File   `json:"files"`      // by name
}

// About is what the caller of Commit says of the image.
type About struct {
	// Words are for the caller alone, such as the name of the lgpu.
	Words map[string]string `json:"words"`
	// Topology has the devices that the program saw, in its order.
	Topology []Device `json:"topology"`
}

// Stream is memory: Size bytes, of which those in no chunk are zero.
type Stream struct {
	Name   string  `json:"name"`
	Size   int64   `json:"size"`
	Chunks []Chunk `json:"chunks"` // by index
}

// Chunk is a piece of a stream. Its text is the index and the hash, such as "12 5e0b…".
type Chunk struct {
	Index int64 // its first byte is at Index × ChunkSize
	Hash  Hash
}

// MarshalText writes the index and the hash.
func (c Chunk) MarshalText() ([]byte, error) {
	return []byte(strconv.FormatInt(c.Index, 10) + " " + c.Hash.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (c *Chunk) UnmarshalText(text []byte) error {
	index, hash, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(index, 10, 64)
	if err != nil {
		return fmt.Errorf("chunk %.80q: it does not begin with an index", text)
	}
	c.Index = n
	return c.Hash.UnmarshalText([]byte(hash))
}

// File is a plain file, such as one of CRIU's.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Hash Hash   `json:"hash"`
}

// Memory is how many bytes the streams have, zeros too.
func (m *Manifest) Memory() int64 {
	var n int64
	for _, s := range m.Streams {
		n += s.Size
	}
	return n
}

// chunkLength is how long a chunk of a stream is; 0 or less where the stream has none with that index.
func (m *Manifest) chunkLength(s *Stream, index int64) int64 {
	if index < 0 || index > s.Size/int64(m.ChunkSize) {
		return 0
	}
	return min(int64(m.ChunkSize), s.Size-index*int64(m.ChunkSize))
}

// encode writes the one text of a manifest.
func (m *Manifest) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// probe reads the version of a manifest alone, which tells whether the rest can be understood.
func probe(text []byte) error {
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return damaged("manifest", "is not JSON: %v", err)
	}
	if head.Format != format {
		return fmt.Errorf("%w: its format is %.40q", ErrNoImage, head.Format)
	}
	if head.Version != version {
		return fmt.Errorf("%w: %d, where this lgpu has %d", ErrVersion, head.Version, version)
	}
	return nil
}

// parse reads a manifest. What it returns is consistent in itself.
func parse(text []byte) (*Manifest, error) {
	if err := probe(text); err != nil {
		return nil, err
	}
	m := new(Manifest)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, damaged("manifest", "cannot be read: %v", err)
	}
	if err := m.check(); err != nil {
		return nil, damaged("manifest", "makes no sense: %v", err)
	}
	if again, err := m.encode(); err != nil || !bytes.Equal(again, text) {
		return nil, damaged("manifest", "is not as lgpu writes it")
	}
	return m, nil
}

// check says what in a manifest contradicts something else in it.
func (m *Manifest) check() error {
	if m.ChunkSize < minChunk || m.ChunkSize > maxChunk || m.ChunkSize&(m.ChunkSize-1) != 0 {
		return fmt.Errorf("chunk_size %d: not a power of two from %d to %d", m.ChunkSize, minChunk, maxChunk)
	}
	before := ""
	total := int64(0)
	for i := range m.Streams {
		s := &m.Streams[i]
		if err := checkName(s.Name); err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
		if s.Name <= before {
			return fmt.Errorf("stream %s: it is not behind %s", s.Name, before)
		}
		before = s.Name
		if s.Size < 0 || s.Size > maxStream-total {
			return fmt.Errorf("stream %s: size %d", s.Name, s.Size)
		}
		total += s.Size
		last := int64(-1)
		for _, c := range s.Chunks {
			if c.Index <= last || m.chunkLength(s, c.Index) <= 0 {
				return fmt.Errorf("stream %s: chunk %d is twice or out of order, or behind the end", s.Name, c.Index)
			}
			last = c.Index
		}
	}
	return m.checkFiles()
}

func (m *Manifest) checkFiles() error {
	names := map[string]bool{}
	before := ""
	for i, f := range m.Files {
		if err := checkName(f.Name); err != nil {
			return fmt.Errorf("file %d: %w", i, err)
		}
		if f.Name <= before {
			return fmt.Errorf("file %s: it is not behind %s", f.Name, before)
		}
		before = f.Name
		if f.Size < 0 || f.Size > maxStream {
			return fmt.Errorf("file %s: size %d", f.Name, f.Size)
		}
		names[f.Name] = true
	}
	for name := range names {
		for folder := name; ; {
			slash := strings.LastIndexByte(folder, '/')
			if slash < 0 {
				break
			}
			if folder = folder[:slash]; names[folder] {
				return fmt.Errorf("file %s: it is a folder, too", folder)
			}
		}
	}
	if len(m.Topology) > maxDevices {
		return fmt.Errorf("topology: %d devices, more than %d", len(m.Topology), maxDevices)
	}
	for i, d := range m.Topology {
		if d.UUID == "" || slices.ContainsFunc(m.Topology[:i], func(o Device) bool { return o.UUID == d.UUID }) {
			return errors.New("topology: a device without a UUID, or with that of another")
		}
		for _, text := range []string{d.UUID, d.Name, d.Kind} {
			if len(text) > maxName || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				return fmt.Errorf("topology: %.40q is no name", text)
			}
		}
	}
	return nil
}

// Stream finds a stream by its name; nil if there is none. It is not to be changed.
func (m *Manifest) Stream(name string) *Stream {
	i, found := slices.BinarySearchFunc(m.Streams, name, func(s Stream, n string) int { return strings.Compare(s.Name, n) })
	if !found {
		return nil
	}
	return &m.Streams[i]
}
