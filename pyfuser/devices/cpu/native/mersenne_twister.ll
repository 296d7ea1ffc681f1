; The numbers of torch's CPU generator, many at a time: MT19937, and what torch makes of its words.
;
; `draw` fills memory with numbers: it copies the block of 624 words from the generator's state,
; makes numbers from it and from the blocks that follow, and writes back where it stopped.  State is
; the memory of `Generator.get_state()`: the words left in the block plus one at byte 8 (i32), the
; place of the next word at 16 (i64), and the block from 24 on, each word in 8 bytes.
;
; A function that makes numbers, `convert(words, to, count, parameter)`, works on eights: it may read
; seven numbers' words too many and write seven numbers too many.

%scratch = type { [1264 x i32], [640 x i32], [640 x i32] }  ; block and next block, words, numbers

declare <8 x i64> @llvm.fshl.v8i64(<8 x i64>, <8 x i64>, <8 x i64>)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

; Makes the next block: word k + 624 of the sequence from the words k, k + 1 and k + 397.
define internal void @next_block(ptr %words) nounwind {
entry:
  br label %body
body:
  %k = phi i64 [ 0, %entry ], [ %next, %body ]
  %k1 = add i64 %k, 1
  %k397 = add i64 %k, 397
  %k624 = add i64 %k, 624
  %first_place = getelementptr i32, ptr %words, i64 %k
  %second_place = getelementptr i32, ptr %words, i64 %k1
  %far_place = getelementptr i32, ptr %words, i64 %k397
  %new_place = getelementptr i32, ptr %words, i64 %k624
  %first = load <8 x i32>, ptr %first_place, align 4
  %second = load <8 x i32>, ptr %second_place, align 4
  %far = load <8 x i32>, ptr %far_place, align 4
  %high = and <8 x i32> %first, splat (i32 u0x80000000)
  %low = and <8 x i32> %second, splat (i32 u0x7fffffff)
  %mixed = or <8 x i32> %high, %low
  %half = lshr <8 x i32> %mixed, splat (i32 1)
  %bit = and <8 x i32> %second, splat (i32 1)
  %is_odd = icmp ne <8 x i32> %bit, zeroinitializer
  %matrix = select <8 x i1> %is_odd, <8 x i32> splat (i32 u0x9908b0df), <8 x i32> zeroinitializer
  %twisted = xor <8 x i32> %half, %matrix
  %new = xor <8 x i32> %far, %twisted
  store <8 x i32> %new, ptr %new_place, align 4
  %next = add i64 %k, 8
  %more = icmp ult i64 %next, 624
  br i1 %more, label %body, label %done
done:
  %block = getelementptr i32, ptr %words, i64 624
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr %block, i64 2496, i1 false)
  ret void
}

; Tempers up to `wanted` words of the block, from `place` on, into `to` (in eights).  Returns how many.
define internal i64 @temper(ptr %words, ptr %place_slot, ptr %to, i64 %wanted) nounwind {
entry:
  %old_place = load i64, ptr %place_slot
  %is_used_up = icmp eq i64 %old_place, 624
  br i1 %is_used_up, label %refill, label %begin
refill:
  call void @next_block(ptr %words)
  br label %begin
begin:
  %place = phi i64 [ %old_place, %entry ], [ 0, %refill ]
  %left = sub i64 624, %place
  %taken = call i64 @llvm.umin.i64(i64 %left, i64 %wanted)
  %new_place = add i64 %place, %taken
  store i64 %new_place, ptr %place_slot
  br label %body
body:
  %i = phi i64 [ 0, %begin ], [ %next, %body ]
  %from_index = add i64 %place, %i
  %from_place = getelementptr i32, ptr %words, i64 %from_index
  %to_place = getelementptr i32, ptr %to, i64 %i
  %y0 = load <8 x i32>, ptr %from_place, align 4
  %a = lshr <8 x i32> %y0, splat (i32 11)
  %y1 = xor <8 x i32> %y0, %a
  %b = shl <8 x i32> %y1, splat (i32 7)
  %b_mask = and <8 x i32> %b, splat (i32 u0x9d2c5680)
  %y2 = xor <8 x i32> %y1, %b_mask
  %c = shl <8 x i32> %y2, splat (i32 15)
  %c_mask = and <8 x i32> %c, splat (i32 u0xefc60000)
  %y3 = xor <8 x i32> %y2, %c_mask
  %d = lshr <8 x i32> %y3, splat (i32 18)
  %y4 = xor <8 x i32> %y3, %d
  store <8 x i32> %y4, ptr %to_place, align 4
  %next = add i64 %i, 8
  %more = icmp ult i64 %next, %taken
  br i1 %more, label %body, label %done
done:
  ret i64 %taken
}

; Makes `count` numbers of `words_each` words and `bytes_each` bytes.
define void @draw(ptr %state, ptr %out, i64 %count, ptr %convert, i64 %words_each, i64 %bytes_each,
                  i64 %parameter) nounwind {
entry:
  %scratch = alloca %scratch, align 64
  %place_slot = alloca i64
  %words = getelementptr %scratch, ptr %scratch, i64 0, i32 1
  %numbers = getelementptr %scratch, ptr %scratch, i64 0, i32 2
  %left_slot = getelementptr i8, ptr %state, i64 8
  %next_slot = getelementptr i8, ptr %state, i64 16
  %block = getelementptr i8, ptr %state, i64 24
  %old_left = load i32, ptr %left_slot, align 1
  %old_left64 = sext i32 %old_left to i64
  %old_place = sub i64 625, %old_left64
  store i64 %old_place, ptr %place_slot
  br label %read
read:
  %r = phi i64 [ 0, %entry ], [ %r_next, %read ]
  %r_from = getelementptr i64, ptr %block, i64 %r
  %r_to = getelementptr i32, ptr %scratch, i64 %r
  %r_wide = load <8 x i64>, ptr %r_from, align 1
  %r_words = trunc <8 x i64> %r_wide to <8 x i32>
  store <8 x i32> %r_words, ptr %r_to, align 4
  %r_next = add i64 %r, 8
  %r_more = icmp ult i64 %r_next, 624
  br i1 %r_more, label %read, label %check

check:  ; `kept` words of the block before are at the beginning of `words`
  %left = phi i64 [ %count, %read ], [ %left_next, %keep ]
  %to = phi ptr [ %out, %read ], [ %to_next, %keep ]
  %kept = phi i64 [ 0, %read ], [ %kept_next, %keep ]
  %is_done = icmp eq i64 %left, 0
  br i1 %is_done, label %end, label %make
make:
  %all_words = mul i64 %left, %words_each
  %wanted = sub i64 %all_words, %kept
  %free = getelementptr i32, ptr %words, i64 %kept
  %taken = call i64 @temper(ptr %scratch, ptr %place_slot, ptr %free, i64 %wanted)
  %have = add i64 %kept, %taken
  %made = udiv i64 %have, %words_each
  call void %convert(ptr %words, ptr %numbers, i64 %made, i64 %parameter)
  %bytes = mul i64 %made, %bytes_each
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %numbers, i64 %bytes, i1 false)
  br label %keep
keep:
  %used = mul i64 %made, %words_each
  %kept_next = sub i64 %have, %used
  %last_place = getelementptr i32, ptr %words, i64 %used
  %last = load i32, ptr %last_place
  store i32 %last, ptr %words
  %left_next = sub i64 %left, %made
  %to_next = getelementptr i8, ptr %to, i64 %bytes
  br label %check

end:
  %place = load i64, ptr %place_slot
  %new_left = sub i64 625, %place
  %new_left32 = trunc i64 %new_left to i32
  store i32 %new_left32, ptr %left_slot, align 1
  store i64 %place, ptr %next_slot, align 1
  br label %write
write:
  %w = phi i64 [ 0, %end ], [ %w_next, %write ]
  %w_from = getelementptr i32, ptr %scratch, i64 %w
  %w_to = getelementptr i64, ptr %block, i64 %w
  %w_words = load <8 x i32>, ptr %w_from, align 4
  %w_wide = zext <8 x i32> %w_words to <8 x i64>
  store <8 x i64> %w_wide, ptr %w_to, align 1
  %w_next = add i64 %w, 8
  %w_more = icmp ult i64 %w_next, 624
  br i1 %w_more, label %write, label %done
done:
  ret void
}

; Eight numbers of 53 bits from sixteen words, the first of two in the upper half.
define internal <8 x i64> @joined(ptr %words, i64 %i) alwaysinline nounwind {
  %place = getelementptr i64, ptr %words, i64 %i
  %pairs = load <8 x i64>, ptr %place, align 4
  %turned = call <8 x i64> @llvm.fshl.v8i64(<8 x i64> %pairs, <8 x i64> %pairs,
                                            <8 x i64> splat (i64 32))
  %low = and <8 x i64> %turned, splat (i64 u0x1fffffffffffff)
  ret <8 x i64> %low
}

; Bernoulli: 1 where a number of 53 bits is less than the parameter.
define void @bernoulli(ptr %words, ptr %to, i64 %count, i64 %parameter) nounwind {
entry:
  %limit1 = insertelement <8 x i64> poison, i64 %parameter, i64 0
  %limit = shufflevector <8 x i64> %limit1, <8 x i64> poison, <8 x i32> zeroinitializer
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %number = call <8 x i64> @joined(ptr %words, i64 %i)
  %is_below = icmp slt <8 x i64> %number, %limit
  %byte = zext <8 x i1> %is_below to <8 x i8>
  %to_place = getelementptr i8, ptr %to, i64 %i
  store <8 x i8> %byte, ptr %to_place, align 1
  %next = add i64 %i, 8
  %more = icmp ult i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}

; Uniform float32 in [0, 1): the parameter is the greatest integer, 2^bits - 1.
define void @uniform_float(ptr %words, ptr %to, i64 %count, i64 %parameter) nounwind {
entry:
  %most = trunc i64 %parameter to i32
  %most1 = insertelement <8 x i32> poison, i32 %most, i64 0
  %mask = shufflevector <8 x i32> %most1, <8 x i32> poison, <8 x i32> zeroinitializer
  %range = add i64 %parameter, 1
  %range_float = uitofp i64 %range to float
  %scale = fdiv float 1.0, %range_float
  %scale1 = insertelement <8 x float> poison, float %scale, i64 0
  %scales = shufflevector <8 x float> %scale1, <8 x float> poison, <8 x i32> zeroinitializer
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %place = getelementptr i32, ptr %words, i64 %i
  %word = load <8 x i32>, ptr %place, align 4
  %low = and <8 x i32> %word, %mask
  %whole = sitofp <8 x i32> %low to <8 x float>
  %number = fmul <8 x float> %whole, %scales
  %to_place = getelementptr float, ptr %to, i64 %i
  store <8 x float> %number, ptr %to_place, align 4
  %next = add i64 %i, 8
  %more = icmp ult i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}

; Uniform float64 in [0, 1).
define void @uniform_double(ptr %words, ptr %to, i64 %count, i64 %parameter) nounwind {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %low = call <8 x i64> @joined(ptr %words, i64 %i)
  %whole = sitofp <8 x i64> %low to <8 x double>
  %number = fmul <8 x double> %whole, splat (double 0x3CA0000000000000)
  %to_place = getelementptr double, ptr %to, i64 %i
  store <8 x double> %number, ptr %to_place, align 4
  %next = add i64 %i, 8
  %more = icmp ult i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}
