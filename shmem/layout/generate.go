package layout

//go:generate go run ./gen ../include
