package daemon

// Error is why a request was refused, and which of its fields it is about. Programs that give the fields names of their
// own, as options of a command, put these in their place.
type Error struct {
	// Class is one of this package's errors, such as ErrInvalid; nil where none fits.
	Class error
	// Field is the name in the API's request, such as "devices"; empty where the request as a whole is refused. A limit
	// is refused by the tree, with a *limits.Error that names its file.
	Field string
	// Value is what was asked for; it may be empty.
	Value string
	// Reason says what is wrong.
	Reason string
	// Remedy says what to do about it; it may be empty.
	Remedy string
	// Cause is the error behind it; it may be nil.
	Cause error
}

// Error names the field, its value and the reason, as far as they are known.
func (e *Error) Error() string {
	switch {
	case e.Field == "":
		return e.Reason
	case e.Value == "":
		return e.Field + ": " + e.Reason
	}
	return e.Field + " " + e.Value + ": " + e.Reason
}

// Unwrap returns class and cause.
func (e *Error) Unwrap() []error {
	var all []error
	for _, err := range []error{e.Class, e.Cause} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// Hint says what to do about the error; it may be empty.
func (e *Error) Hint() string { return e.Remedy }

// simError refuses the shape of a software GPU.
func simError(err error) error {
	return &Error{Class: ErrInvalid, Field: "sim", Reason: err.Error(), Cause: err}
}
