package main

import "context"

const guestShell = ""

func runCgroup2(context.Context, *rig) error { return nil }
