//! Where things lie, of one small problem whose ranks have 40, 0 and 60 rows.

use super::*;
use crate::cuda::exchange::words::SCRATCH_AT;
use crate::cuda::sys::bindings::OG_MAX_SHARE_BITS;
use crate::element::ElementType;
use crate::plan::{MAX_BLOCKS, Operation, PlanOptions, Problem, Strategy};

const COPIES: Engine = Engine::CopyEngines { streams: 1 };

fn layout(scaling: Scaling, engine: Engine) -> (Plan, Layout) {
    let (a, d) = match scaling {
        Scaling::None => (ElementType::Bf16, ElementType::Bf16),
        _ => (ElementType::E4m3, ElementType::Bf16),
    };
    let problem = Problem::builder(100, 48, 64).shards(&[40, 0, 60]).elements(a, a, d);
    let problem = problem.scaling(scaling).lda(80).build().unwrap();
    let options = PlanOptions { engine, pieces: Some(4), ..PlanOptions::default() };
    let plan = Plan::new(&problem, options).unwrap();
    let layout = Layout::new(&plan, false).unwrap();
    (plan, layout)
}

/// A reduction of the same problem.
fn reducing(plan: &Plan, operation: Operation) -> Plan {
    let strategy = Strategy::Pipelined;
    let options = PlanOptions { operation, strategy, engine: COPIES, ..plan.options() };
    Plan::new(plan.problem(), PlanOptions { pieces: Some(4), ..options }).unwrap()
}

#[test]
fn nothing_overlaps() {
    let engines = [COPIES, Engine::Kernel { blocks: 12 }];
    let all = [Scaling::None, Scaling::Rows].into_iter().zip(engines);
    for ((scaling, engine), signals) in all.zip([12, 12 * 16]) {
        let (_, layout) = layout(scaling, engine);
        let words = layout.words(1);
        let ranks = 3;
        let mut parts = vec![
            (words.stop_at, 4),
            (words.begun_at, 2),
            (SENT_TOGGLES_AT as i32, MOST_SENDERS as i32),
            (words.epoch_at, 1),
            (words.over_at, 1),
            (words.last_buffer_at, 1),
            (words.last_use_at, 2),
            (TOGGLE_EPOCH_AT as i32, 1),
            (SCRATCH_AT as i32, 4),
            (words.sent_at, MOST_SENDERS as i32),
            (words.signals_at, signals),
            (words.toggles_at, 24),
            (words.consumed_at, ranks),
            (words.layouts_at, 8 * ranks),
            (layout.starts_at() as i32, 2 * ranks),
            (layout.counter_at() as i32, 1),
        ];
        parts.sort_unstable();
        assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:?}");
        assert_eq!([words.layouts_at % 2, words.begun_at % 2], [0; 2]);
        let mut at = Layout::word(layout.word_count());
        for buffer in 0..BUFFERS {
            assert!(layout.row(buffer, 0) >= at && layout.row(buffer, 0).is_multiple_of(4096));
            at = layout.row(buffer, 100);
            assert!(layout.scale(buffer, 0) >= at);
            at = layout.scale(buffer, 0) + layout.scales_bytes(100);
        }
        assert!(layout.bytes >= at);
    }
}

#[test]
fn sums_and_slots_do_not_overlap() {
    let (plan, _) = layout(Scaling::None, COPIES);
    let sums = (48, Partials::F32);
    let layout = Layout::of_sums(&reducing(&plan, Operation::GemmReduceScatter), sums).unwrap();
    let (row, most) = (48 * 4, 60);
    assert_eq!((layout.pitch, layout.slot_bytes()), (row, most * row));
    let mut at = Layout::word(layout.word_count());
    for buffer in 0..BUFFERS {
        assert!(layout.row(buffer, 0) >= at);
        at = layout.row(buffer, 100);
        assert!(layout.slots_start(buffer) >= at);
        at = layout.slots_start(buffer) + 2 * layout.slot_bytes();
        let slots = [(at - 2 * most * row, 2 * most * row), (at - 2 * most * row, 0)];
        assert_eq!(layout.received(buffer, &(0..40), 100), slots);
    }
    assert_eq!(layout.bytes, at);
}

#[test]
fn every_rank_has_its_slot_at_every_owner() {
    let (gather, rows) = layout(Scaling::None, COPIES);
    let plan = reducing(&gather, Operation::GemmReduceScatter);
    let layout = Layout::of_sums(&plan, (48, Partials::Bf16)).unwrap();
    // Chunk 5 has rows 55..70; it is the second of rank 2, whose rows start at 40.
    let at = |slot: u64, local: u64| layout.slots_start(1) + (slot * 60 + local) * 96;
    assert_eq!(layout.lands_at(&plan, 5, [0, 2], 1), at(0, 15));
    assert_eq!(layout.lands_at(&plan, 5, [1, 2], 1), at(1, 15));
    assert_eq!(layout.lands_at(&plan, 0, [2, 0], 1), at(1, 0));
    assert_eq!([0, 1].map(|from| layout.signal_slot(&plan, 5, from)), [1, 5]);
    // Rows are where they are on all ranks.
    assert_eq!(rows.lands_at(&gather, 5, [2, 0], 1), rows.row(1, 55));
    assert_eq!(rows.signal_slot(&gather, 5, 2), gather.chunks().signal_slot(5, 4));
    assert_eq!(layout.own_slots(&plan, 2), 8..12);
}

#[test]
fn every_rank_has_its_slot_for_all_rows_at_every_rank() {
    let plan = reducing(&layout(Scaling::None, COPIES).0, Operation::GemmAllReduce);
    let layout = Layout::of_sums(&plan, (48, Partials::Bf16)).unwrap();
    assert_eq!(layout.slot_bytes(), 100 * 96);
    let at = |slot: u64, row: u64| layout.slots_start(1) + (slot * 100 + row) * 96;
    assert_eq!(layout.lands_at(&plan, 5, [0, 1], 1), at(0, 55));
    assert_eq!(layout.lands_at(&plan, 5, [2, 1], 1), at(1, 55));
    // Another step may have more chunks: each rank four.
    assert_eq!([0, 1].map(|from| layout.signal_slot(&plan, 5, from)), [5, 12 + 5]);
    assert_eq!(layout.own_slots(&plan, 1), 12..12 + 8);
    assert_eq!(layout.slots(), 36);
}

/// In two shots slots hold a rank's own rows alone, and a total lands on the receiver's own sums of these rows.
#[test]
fn totals_take_the_place_of_sums_that_have_been_sent() {
    let one_shot = reducing(&layout(Scaling::None, COPIES).0, Operation::GemmAllReduce);
    let options = PlanOptions { strategy: Strategy::Fused, ..one_shot.options() };
    let plan = Plan::new(one_shot.problem(), options).unwrap();
    let layout = Layout::of_sums(&plan, (48, Partials::Bf16)).unwrap();
    assert_eq!(layout.slot_bytes(), 60 * 96);
    // Chunk 5, of rank 2's rows from 40 on: sums, and the total.
    assert_eq!(layout.lands_at(&plan, 5, [1, 2], 1), layout.slots_start(1) + (60 + 15) * 96);
    assert_eq!(layout.lands_at(&plan, 5, [2, 1], 1), layout.row(1, 55));
    assert_eq!([1, 2].map(|from| layout.signal_slot(&plan, 5, from)), [12 + 5, 24 + 5]);
}

/// A kernel reads all ranks' sums where they lie, the caller's after it has brought them there; NCCL leaves totals there.
#[test]
fn where_a_kernel_or_nccl_adds_up_there_are_sums_and_no_slots() {
    let operations = [Operation::GemmReduceScatter, Operation::GemmAllReduce, Operation::AllReduce];
    let engines = [(Engine::Kernel { blocks: 4 }, 4), (Engine::Nccl, 1)];
    for (operation, (engine, pieces)) in
        operations.into_iter().flat_map(|of| engines.map(|by| (of, by)))
    {
        let plan = reducing(&layout(Scaling::None, COPIES).0, operation);
        let options = plan.options().with_strategy(Strategy::Sequential);
        let options = options.with_engine(engine).with_pieces(pieces);
        let plan = Plan::new(plan.problem(), options).unwrap();
        let layout = Layout::of_sums(&plan, (48, Partials::Bf16)).unwrap();
        assert_eq!(layout.slot_bytes(), 0);
        assert!(layout.row(1, 0) >= layout.row(0, 100));
        assert_eq!(layout.bytes, layout.row(1, 100).next_multiple_of(4096));
    }
}

/// Where other operations' words lie between this one's and its rows.
#[test]
fn rows_may_lie_far_behind_the_words() {
    let (plan, near) = layout(Scaling::Rows, COPIES);
    let far = near.clone().with_rows_from(1 << 20);
    assert_eq!(far.row(0, 0), 1 << 20);
    let by = (1 << 20) - near.row(0, 0);
    assert_eq!([far.row(1, 3), far.scale(0, 1)], [near.row(1, 3) + by, near.scale(0, 1) + by]);
    assert_eq!((far.bytes, far.words_bytes()), (near.bytes + by, near.words_bytes()));
    assert_eq!(far.pieces(&plan, 1)[2].offset[0], near.pieces(&plan, 1)[2].offset[0] + by);
    assert_eq!(far.first_words(7, &[]), near.first_words(7, &[]));
}

#[test]
fn pieces_end_with_their_last_row() {
    let (plan, layout) = layout(Scaling::Rows, COPIES);
    let pushes = &layout.pieces(&plan, 1)[4..];
    assert_eq!(pushes.len(), 4);
    assert_eq!(pushes[0].offset, [layout.row(1, 40), layout.scale(1, 40)]);
    assert_eq!(pushes[3].offset[0] + pushes[3].bytes[0], layout.row(1, 99) + 64);
    assert_eq!((pushes[3].bytes, pushes[3].slot), ([14 * 80 + 64, 15 * 4], 11));
}

#[test]
fn the_first_words_say_that_the_epoch_before_was_the_last() {
    let (_, layout) = layout(Scaling::None, Engine::Kernel { blocks: 3 });
    let starts = [0x7f00_1234_5678, 2, 3];
    let words = layout.first_words(7, &starts);
    let [first, second] = [0, 1].map(|half| words[layout.starts_at() as usize + half]);
    assert_eq!(u64::from(first) | u64::from(second) << 32, starts[0]);
    assert_eq!(layout.starts_at() % 2, 0, "64 bits lie at multiples of 8 bytes");
    assert_eq!(words[layout.counter_at() as usize..], [0]);
    let at = layout.words(0);
    let value = |word: i32| words[word as usize];
    assert_eq!(
        [value(at.epoch_at), value(at.signals_at + 4 * 12 - 1), value(at.consumed_at + 2)],
        [7; 3]
    );
    assert_eq!([value(at.last_use_at), value(at.last_use_at + 1)], [7; 2]);
    assert_eq!([value(at.layouts_at + 1), value(at.layouts_at + 23)], [7; 2]);
    assert_eq!([at.over_at, at.stop_at, at.begun_at + 1, at.layouts_at].map(value), [0; 4]);
}

#[test]
fn every_block_that_pushes_has_a_word() {
    for blocks in 1..=MAX_BLOCKS {
        let bits = share_bits(Engine::Kernel { blocks });
        assert!(
            (blocks..2 * blocks).contains(&(1 << bits)) && bits <= OG_MAX_SHARE_BITS,
            "{blocks}"
        );
    }
    assert_eq!(share_bits(COPIES), 0);
}
