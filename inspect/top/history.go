package top

import "github.com/lgpu/lgpu/api"

// history is what each row had at the newest frames, oldest first.
type history map[row][]int

// longest is the widest that a sparkline gets.
const longest = 60

// add takes the shares of a snapshot and forgets rows that are gone.
func (h history) add(s *api.Snapshot) {
	seen := make(map[row]bool, len(h))
	for _, n := range s.GetDirectories() {
		for _, d := range n.GetDevices() {
			r := row{id: n.GetId(), device: d.GetUuid()}
			seen[r] = true
			h[r] = append(h[r], delivered(d))
			if extra := len(h[r]) - longest; extra > 0 {
				h[r] = append(h[r][:0], h[r][extra:]...)
			}
		}
	}
	for r := range h {
		if !seen[r] {
			delete(h, r)
		}
	}
}
