package main

func cHeader(p *plan) []byte               { return nil }
func cStubs(p *plan) []byte                { return nil }
func cExports(p *plan) []byte              { return nil }
func cTables(p *plan, t *typeTable) []byte { return nil }
func cMap(p *plan) []byte                  { return nil }
