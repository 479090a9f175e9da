// Instructions that one lane of a warp executes for all.
//
// What belongs here: how that is written, without a branch. A branch that lanes may take differently would cost what follows it
// the uniform registers, which loads take their operands from.
#pragma once

// The instruction, by one of a warp's lanes, which come to it together: always the same one. The compiler knows what
// `elect.sync` does, and executes an instruction of the whole warp, as a load by TMA is, once.
#define OG_BY_ONE_LANE(instruction) \
    "{\n.reg .pred is_one;\nelect.sync _|is_one, 0xffffffff;\n@is_one " instruction "\n}"
