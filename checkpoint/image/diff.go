package image

// Change says how a stream of one image is different from that of the same name in another one. All in bytes.
type Change struct {
	Name    string `json:"name"`
	Before  int64  `json:"before"`  // size; -1 if it is in the second image alone
	After   int64  `json:"after"`   // size; -1 if it is in the first image alone
	Changed int64  `json:"changed"` // of the second one, in chunks with other contents at that place of the first
	New     int64  `json:"new"`     // of Changed, in chunks that the first image has nowhere
}

// Diff compares the streams of two manifests, and then their plain files in the same way, which have one piece each. Only
// what is different is returned. Streams with chunks of other sizes differ everywhere.
func Diff(before, after *Manifest) []Change {
	had := map[Hash]bool{}
	for _, s := range before.Streams {
		for _, c := range s.Chunks {
			had[c.Hash] = true
		}
	}
	var all []Change
	for n := range after.Streams {
		s := &after.Streams[n]
		c := Change{Name: s.Name, Before: -1, After: s.Size}
		old := map[int64]Hash{}
		if b := before.Stream(s.Name); b != nil {
			c.Before = b.Size
			for _, chunk := range b.Chunks {
				old[chunk.Index] = chunk.Hash
			}
		}
		for _, chunk := range s.Chunks {
			if before.ChunkSize == after.ChunkSize && old[chunk.Index] == chunk.Hash {
				delete(old, chunk.Index)
				continue
			}
			delete(old, chunk.Index)
			length := after.chunkLength(s, chunk.Index)
			c.Changed += length
			if !had[chunk.Hash] {
				c.New += length
			}
		}
		for index := range old { // what is zero now
			c.Changed += max(after.chunkLength(s, index), 0)
		}
		if c.Changed > 0 || c.Before != c.After {
			all = append(all, c)
		}
	}
	for _, s := range before.Streams {
		if after.Stream(s.Name) == nil {
			all = append(all, Change{Name: s.Name, Before: s.Size, After: -1})
		}
	}
	return append(all, diffFiles(before, after)...)
}

func diffFiles(before, after *Manifest) []Change {
	var all []Change
	old := map[string]File{}
	for _, f := range before.Files {
		old[f.Name] = f
	}
	for _, f := range after.Files {
		o, had := old[f.Name]
		delete(old, f.Name)
		c := Change{Name: filesName + "/" + f.Name, Before: -1, After: f.Size, Changed: f.Size, New: f.Size}
		if had {
			c.Before = o.Size
		}
		if !had || o.Hash != f.Hash {
			all = append(all, c)
		}
	}
	for _, f := range before.Files {
		if _, gone := old[f.Name]; gone {
			all = append(all, Change{Name: filesName + "/" + f.Name, Before: f.Size, After: -1})
		}
	}
	return all
}
