package state

import (
	"time"

	"github.com/lgpu/lgpu/api"
)

// Event is something that happened: a line of lgpu events --json.
type Event struct {
	Number  uint64     `json:"number"`
	Time    time.Time  `json:"time"`
	Kind    string     `json:"kind"`
	Path    *string    `json:"path"`
	Device  *string    `json:"device"`
	PID     *int32     `json:"pid"`
	Bytes   *uint64    `json:"bytes"`
	By      *Author    `json:"by"`
	Changes []Change   `json:"changes"`
	Count   uint64     `json:"count"`
	First   *time.Time `json:"first"`
	Last    *time.Time `json:"last"`
	Text    string     `json:"text"`
}

// Author is the process that caused an event.
type Author struct {
	UID     uint32  `json:"uid"`
	User    *string `json:"user"`
	PID     *int32  `json:"pid"`
	Command *string `json:"command"`
}

// Change is a value that was written.
type Change struct {
	File   string  `json:"file"`
	Device *string `json:"device"`
	Old    string  `json:"old"`
	New    string  `json:"new"`
}

// EventOf is an event of the API.
func EventOf(e *api.Event) Event {
	out := Event{
		Number: e.GetNumber(), Time: e.GetTime().AsTime(), Kind: e.GetKind(), Path: known(e.GetPath()),
		Device: known(e.GetDevice()), PID: known(e.GetPid()), Bytes: known(e.GetBytes()), Count: max(e.GetCount(), 1),
		First: moment(e.GetFirst()), Last: moment(e.GetLast()), Text: e.GetText(),
	}
	if by := e.GetBy(); by != nil {
		out.By = &Author{
			UID: by.GetUid(), User: known(by.GetUser()), PID: known(by.GetPid()), Command: known(by.GetCommand()),
		}
	}
	for _, c := range e.GetChanges() {
		out.Changes = append(out.Changes, Change{c.GetFile(), known(c.GetDevice()), c.GetOld(), c.GetNew()})
	}
	out.Changes = array(out.Changes)
	return out
}
