package limits

import "strconv"

// Names say how people call the users and groups of users of whom the tree knows numbers alone. A function returns an
// empty text for a number without a name; nil is one that knows none. Refusals ask them after the tree is free again.
// They may be called by several goroutines.
type Names struct {
	User, Group func(id uint32) string
}

// user is a user in a sentence that is for people, such as "user alice", or "user 1000".
func (n Names) user(id uint32) string { return "user " + called(n.User, id) }

// group is user for a group of users.
func (n Names) group(id uint32) string { return "group " + called(n.Group, id) }

// owner is who owns a directory, in a record that holds when names have changed: "user 1000 (alice), group 0 (root)".
func (n Names) owner(d DirectoryState) string {
	return "user " + noted(n.User, d.UID) + ", group " + noted(n.Group, d.GID)
}

func called(names func(uint32) string, id uint32) string {
	if names != nil {
		if name := names(id); name != "" {
			return name
		}
	}
	return strconv.FormatUint(uint64(id), 10)
}

func noted(names func(uint32) string, id uint32) string {
	number := strconv.FormatUint(uint64(id), 10)
	if name := called(names, id); name != number {
		return number + " (" + name + ")"
	}
	return number
}

// about is an error whose reason and remedy name users or groups of users: by number until it is named.
func about(e Error, words func(Names) (reason, remedy string)) *Error {
	e.words = words
	return e.named(Names{})
}

// named is the error as people who know names are told it.
func (e *Error) named(n Names) *Error {
	if e.words == nil {
		return e
	}
	told := *e
	told.Reason, told.Remedy = e.words(n)
	return &told
}
